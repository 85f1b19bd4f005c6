"""The vectorised draft against the engine's block and walk computed plainly; training; the checkpoint."""

import re

import pytest
import torch

import algorithms
from algorithms.dflash.training import Anchored
from algorithms.dspark.drafting import draft_steps, walk
from algorithms.dspark.training import read_rows
from tests.algorithms.dense import dense_block
from tests.algorithms.small import (
    MASK,
    assert_near,
    check_export_and_restore,
    check_fewer_tokens,
    check_later_states_are_not_read,
    make_draft,
    pack,
    sequence,
    start_of_document,
    verifier_weights,
)

DSPARK = algorithms.load("dspark")
TOKENS = 3
SETTINGS = [
    {"block_size": 3},
    {"block_size": 4, "sample_from_anchor": False},
    {"block_size": 3, "causal": True, "confidence_head_with_markov": False},
    {"block_size": 5, "sliding_window": 4, "layers": 2},
    {"block_size": 3, "sliding_window": 3, "causal": False, "markov_rank": 5},
    {"block_size": 4, "sample_from_anchor": False, "layers": 2, "draft_vocab_size": None, "confidence_head": False},
]
each_setting = pytest.mark.parametrize("settings", SETTINGS, ids=str)


def spark(**settings):
    return make_draft("dspark", **settings)


def plain_walk(draft, rows_KH, token):
    """(drafts, confidences) by the definition: every draft follows the one before it, w1 is read by target ids."""
    weights = dict(draft.named_parameters())
    drafts, confidences = [], []
    for output in rows_KH:
        word = weights["markov_head.markov_w1.weight"][token]
        logits = weights["lm_head.weight"] @ output + weights["markov_head.markov_w2.weight"] @ word
        if draft.shape.confidence_head:
            read = torch.cat((output, word)) if draft.shape.confidence_head_with_markov else output
            odds = weights["confidence_head.proj.weight"][0] @ read + weights["confidence_head.proj.bias"][0]
            confidences.append(float(odds.detach().sigmoid()))
        token = int(draft.draft_to_target_D[logits.argmax()])
        drafts.append(token)
    return drafts, confidences or [1.0] * len(drafts)


@each_setting
def test_drafting_equals_the_engines_block_and_walk_computed_plainly(settings):
    draft = spark(**settings)
    unused = 0 if settings.get("sample_from_anchor", True) else 1
    tokens, states = sequence(14)
    proposals = DSPARK.propose(draft, tokens, states, TOKENS)
    assert proposals.shape == (13, TOKENS)
    for last in (0, 1, 6, 12):
        token = int(tokens[last + 1])
        rows = dense_block(draft, token, states[: last + 1], TOKENS + unused)
        drafts, confidences = plain_walk(draft, rows[unused:], token)
        got = draft_steps(draft, tokens[: last + 2], states[: last + 1], TOKENS)
        assert_near(got.output_KH, rows[unused:])
        assert got.token_ids_K.tolist() == drafts == proposals[last].tolist()
        assert got.confidence_K.tolist() == pytest.approx(confidences, abs=1e-4)


def test_the_walk_follows_the_drafts_and_not_the_rows_alone():
    draft = spark(block_size=TOKENS)
    outputs = torch.randn(50, TOKENS, 32, generator=torch.Generator().manual_seed(0)) * 0.2
    anchors = torch.arange(50)
    found = walk(draft, outputs, anchors)
    assert found.tolist() == [plain_walk(draft, o, int(a))[0] for o, a in zip(outputs, anchors, strict=True)]
    assert not torch.equal(found, draft.draft_to_target_D[draft.lm_head(outputs).argmax(-1)])
    assert not torch.equal(found[:, 1:], walk(draft, outputs, anchors.flip(0))[:, 1:])


def test_states_after_a_position_do_not_change_its_drafts():
    check_later_states_are_not_read("dspark", spark(block_size=TOKENS))


@each_setting
def test_training_equals_drafting_on_the_true_prefix_in_every_document(settings):
    draft = spark(**settings)
    batch = pack([9, 13, 6], [3, 5, 2])
    size = settings["block_size"]
    count = size - draft.shape.unused_rows
    blocks = Anchored.of(batch, count, 100)
    output_NH, embedding_Nr = read_rows(draft, batch, blocks, size)
    trained = iter(zip(output_NH, draft.logits(output_NH, embedding_Nr), strict=True))
    weights = dict(draft.named_parameters())
    for row, anchor in enumerate(blocks.anchor_R.tolist()):
        first = start_of_document(batch, anchor)
        prefix = batch.token_ids_S[first : anchor + 1], batch.aux_states_SAH[first:anchor]
        drafted = draft_steps(draft, *prefix, count)
        for k in range(int(blocks.valid_RK[row].sum())):
            output, logits = next(trained)
            assert_near(output, drafted.output_KH[k])
            # Accepted so far: the token before draft k is the reply's own.
            word = weights["markov_head.markov_w1.weight"][batch.token_ids_S[anchor + k]]
            want = weights["lm_head.weight"] @ output + weights["markov_head.markov_w2.weight"] @ word
            assert_near(logits, want)
            if k == 0:
                assert_near(logits, drafted.logits_KD[0])
    assert next(trained, None) is None


def test_fewer_tokens_of_a_causal_block_are_the_same_tokens():
    check_fewer_tokens("dspark", spark(block_size=5, causal=True), spark(block_size=3), draft_steps)


@each_setting
def test_export_and_restore_are_inverse(settings):
    check_export_and_restore("dspark", spark(**settings))


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ({}, None),
        ({"sliding_window": 4}, None),
        ({"causal": True}, {"causal": True}),
        ({"sliding_window": 4, "causal": False}, {"causal": False}),
    ],
)
def test_causality_is_written_where_the_server_would_take_the_other(settings, written):
    layer = DSPARK.export(spark(block_size=3, **settings))[0]["transformer_layer_config"]
    assert layer.get("dflash_config") == written


def test_a_checkpoint_without_the_anchors_flag_is_read_as_the_server_reads_it():
    content, tensors = DSPARK.export(spark(block_size=4, sample_from_anchor=False))
    del content["sample_from_anchor"], content["enable_confidence_head"]
    again = DSPARK.restore(content, {n: t for n, t in tensors.items() if "confidence" not in n}, verifier_weights())
    assert again.shape.unused_rows == 1 and again.confidence_head is None


def test_a_dflash_draft_lacks_nothing_but_the_heads():
    settings = {"block_size": 4, "draft_vocab_size": 40}
    theirs = algorithms.load("dflash").export(make_draft("dflash", **settings))[1]
    ours = DSPARK.export(spark(sample_from_anchor=False, **settings))[1]
    assert theirs.keys() < ours.keys()
    assert all(name.startswith(DSPARK.new_tensors) for name in ours.keys() - theirs.keys())


REFUSED = [
    ({"speculative_tokens": 3}, "speculative_tokens = 3: a bidirectional block of 8 rows with sample_from_anchor true "
                                "drafts 8. Fix: use block_size 3, or 8"),
    ({"speculative_tokens": 8, "sample_from_anchor": False}, "drafts 7. Fix: use block_size 9, or 7"),
    ({"speculative_tokens": 9, "sliding_window": 5}, "a causal block of 8 rows with sample_from_anchor true "
                                                     "drafts up to 8. Fix: use block_size 9, or 8"),
    ({"speculative_tokens": 7, "sliding_window": 5, "causal": False}, "a bidirectional block"),
    ({"speculative_tokens": 1, "block_size": 1, "sample_from_anchor": False}, "drafts 0. Fix: use block_size 2"),
    ({"speculative_tokens": 8, "markov_rank": 0}, "greater than or equal to 1"),
    ({"speculative_tokens": 8, "markov_head_type": "gated"}, "Input should be 'vanilla'"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "said"), REFUSED, ids=str)
def test_what_would_be_served_otherwise_than_trained_is_refused(settings, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        DSPARK.Config(mask_token_id=MASK, **settings)


def test_a_causal_block_may_draft_fewer_tokens_than_it_was_trained_for():
    assert DSPARK.Config(mask_token_id=MASK, speculative_tokens=3, sliding_window=64).drafts_of_block == 8


def test_a_mask_token_that_the_verifier_lacks_is_refused():
    with pytest.raises(ValueError, match=r"mask_token_id = 61: the verifier has 61 tokens\. Fix: "):
        spark(block_size=3, mask_token_id=61)
