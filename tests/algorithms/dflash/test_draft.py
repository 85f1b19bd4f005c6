"""The vectorised draft against the engine's block computed densely, training against drafting, the checkpoint."""

import re

import pytest
import torch

import algorithms
from algorithms.dflash.drafting import draft_block
from algorithms.dflash.training import block_states
from tests.algorithms import small
from tests.algorithms.dense import dense_block
from tests.algorithms.small import (
    MASK,
    VOCABULARY,
    assert_near,
    check_export_and_restore,
    check_fewer_tokens,
    check_later_states_are_not_read,
    check_training_equals_drafting,
    make_draft,
    pack,
    sequence,
    verifier_weights,
)

DFLASH = algorithms.load("dflash")
TOKENS = 3
SETTINGS = [
    {"block_size": 4},
    {"block_size": 4, "causal": True},
    {"block_size": 4, "sliding_window": 3},
    {"block_size": 4, "sliding_window": 5, "causal": True, "layers": 2},
    {"block_size": 4, "layers": 2, "draft_vocab_size": None},
]
each_setting = pytest.mark.parametrize("settings", SETTINGS, ids=str)


@each_setting
def test_drafting_equals_the_engines_block_computed_densely(settings):
    draft = make_draft("dflash", **settings)
    tokens, states = sequence(14)
    proposals = DFLASH.propose(draft, tokens, states, TOKENS)
    assert proposals.shape == (13, TOKENS)
    for last in (0, 1, 6, 12):
        rows = dense_block(draft, int(tokens[last + 1]), states[: last + 1], TOKENS + 1)
        got = draft_block(draft, tokens[: last + 2], states[: last + 1], TOKENS)
        assert_near(got.output_KH, rows[1:])
        want = draft.draft_to_target_D[(rows[1:] @ draft.lm_head.weight.T).argmax(-1)]
        assert got.token_ids_K.tolist() == want.tolist() == proposals[last].tolist()


def test_long_replies_are_drafted_in_chunks_with_the_same_result(monkeypatch):
    draft = make_draft("dflash", block_size=4)
    tokens, states = sequence(23)
    whole = DFLASH.propose(draft, tokens, states, TOKENS)
    monkeypatch.setattr("algorithms.dflash.drafting.CHUNK_BLOCKS", 5)
    assert torch.equal(DFLASH.propose(draft, tokens, states, TOKENS), whole)


def test_states_after_a_position_do_not_change_its_drafts():
    check_later_states_are_not_read("dflash", make_draft("dflash", block_size=4))


@each_setting
def test_training_equals_drafting_on_the_true_prefix_in_every_document(settings):
    batch = pack([9, 13, 6], [3, 5, 2])
    anchor_R = batch.loss_mask_S.nonzero().squeeze(1)
    check_training_equals_drafting(make_draft("dflash", **settings), batch, anchor_R, draft_block)


def test_fewer_tokens_of_a_causal_block_are_the_same_tokens():
    causal, both_ways = (make_draft("dflash", block_size=4, causal=causal) for causal in (True, False))
    check_fewer_tokens("dflash", causal, both_ways, draft_block)


def test_padding_behind_the_documents_is_not_read():
    draft = make_draft("dflash", block_size=4)
    batch = pack([9, 5], [3, 5])
    padded = pack([9, 5], [3, 5])
    padded.document_S[9:] = -1
    anchor_R = torch.tensor([4, 8])
    assert_near(block_states(draft, padded, anchor_R, 4), block_states(draft, batch, anchor_R, 4))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("algorithm", ["dflash", "dflash2", "dspark"])
def test_rows_that_are_asked_for_are_those_of_whole_blocks(algorithm, layers):
    draft, batch = make_draft(algorithm, **small.SETTINGS[algorithm], layers=layers), pack([9, 13, 6], [3, 5, 2])
    anchor_R = torch.tensor([0, 4, 5, 8, 12, 20, 21, 23, 27])
    kept_RT = torch.rand(len(anchor_R), 3, generator=torch.Generator().manual_seed(0)) < 0.6
    whole_RTH = block_states(draft, batch, anchor_R, 4)
    assert_near(block_states(draft, batch, anchor_R, 4, 1), whole_RTH[:, 1:])
    assert_near(block_states(draft, batch, anchor_R, 4, 1, kept_RT), whole_RTH[:, 1:][kept_RT])


@each_setting
def test_export_and_restore_are_inverse(settings):
    check_export_and_restore("dflash", make_draft("dflash", **settings))


REFUSED = [
    (3, False, "a bidirectional block of 8 rows drafts 7. Fix: use 7, or block_size 4"),
    (9, False, "a bidirectional block of 8 rows drafts 7. Fix: use 7, or block_size 10"),
    (9, True, "a causal block of 8 rows drafts up to 7. Fix: use 7, or block_size 10"),
]


@pytest.mark.parametrize(("tokens", "causal", "said"), REFUSED)
def test_a_block_that_would_be_served_otherwise_than_trained_is_refused(tokens, causal, said):
    with pytest.raises(ValueError, match=re.escape(f"speculative_tokens = {tokens}: {said}")):
        DFLASH.Config(mask_token_id=MASK, speculative_tokens=tokens, causal=causal)


def test_a_causal_block_may_draft_fewer_tokens_than_it_was_trained_for():
    assert DFLASH.Config(mask_token_id=MASK, speculative_tokens=3, causal=True).block_size == 8


def test_a_mask_token_that_the_verifier_lacks_is_refused():
    with pytest.raises(ValueError, match=r"mask_token_id = 61: the verifier has 61 tokens\. Fix: "):
        make_draft("dflash", block_size=4, mask_token_id=61)
    verifier = verifier_weights()
    verifier.embedding_VH[MASK] = 0
    config = DFLASH.Config(speculative_tokens=7, mask_token_id=MASK)
    with pytest.raises(ValueError, match=r"mask_token_id = 60: its embedding is all zeros\. Fix: "):
        DFLASH.build(config, verifier, torch.arange(VOCABULARY), [1])
