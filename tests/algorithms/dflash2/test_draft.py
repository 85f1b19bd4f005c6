"""The draft against the engine's block computed row by row, training against drafting, the checkpoint."""

from functools import partial

import pytest
import torch

import algorithms
from algorithms.dflash.training import Anchored
from algorithms.dflash2.drafting import draft_block
from tests.algorithms.dense import dense_block
from tests.algorithms.small import (
    AUX,
    MASK,
    VOCABULARY,
    WIDTH,
    assert_near,
    check_export_and_restore,
    check_training_equals_drafting,
    pack,
    sequence,
    verifier_weights,
)
from tests.algorithms.small import make_draft as make_block_draft

DFLASH2 = algorithms.load("dflash2")
TOKENS = 3
SIZES = {"block_size": 4, "conv_group_size": 8, "selector_rank": 5, "selector_top_k": 6}
SETTINGS = [
    {},
    {"causal": True, "conv_kernel_size": 3},
    {"sliding_window": 3, "conv_group_size": 32},
    {"sliding_window": 5, "causal": True, "layers": 2},
    {"layers": 2, "conv_kernel_size": 4, "conv_group_size": 1, "selector_top_k": 2},
]
each_setting = pytest.mark.parametrize("settings", SETTINGS, ids=str)


def make_draft(**settings):
    draft = make_block_draft("dflash2", None, **SIZES | settings)
    with torch.no_grad():  # as large as the logits, so that the walk leaves the largest of them
        draft.candidate_selector.successor_codebook.mul_(8.0)
    return draft


def convolved(draft, name, rows, normed, side):
    """Contract 4.6, row by row and tap by tap."""
    weights = dict(draft.named_parameters())
    base, size = weights[f"{name}_conv.base_kernel"], draft.shape.conv_group_size
    out = []
    for p in range(len(rows)):
        own = (weights[f"{name}_conv.kernel_projection.weight"] @ normed[p]).view(2, base.shape[1], WIDTH // size)
        taps = range(min(base.shape[1], p + 1))
        out.append(sum((base[side, t] + own[side, t].repeat_interleave(size)) * rows[p - t] for t in taps))
    return torch.stack(out)


def walked(draft, token, outputs):
    """All edges between the candidates of neighbouring positions, then the greedy walk over them."""
    selector, count = draft.candidate_selector, draft.shape.selector_top_k
    before, at, chosen = [token] * count, 0, []
    for output in outputs:
        logits, ids = (draft.lm_head.weight @ output).topk(count)
        read = selector.hidden_projection.weight @ output
        edges = [logits + selector.successor_codebook[ids] @ (selector.predecessor_codebook[p] * read) for p in before]
        at = int(edges[at].argmax())
        chosen.append(int(ids[at]))
        before = ids.tolist()
    return chosen


@each_setting
def test_drafting_equals_the_engines_block_and_walk(settings):
    draft = make_draft(**settings)
    tokens, states = sequence(14)
    proposals = DFLASH2.propose(draft, tokens, states, TOKENS)
    assert proposals.shape == (13, TOKENS)
    plain = 0
    with torch.no_grad():
        for last in range(13):
            rows = dense_block(draft, int(tokens[last + 1]), states[: last + 1], TOKENS + 1, partial(convolved, draft))
            got = draft_block(draft, tokens[: last + 2], states[: last + 1], TOKENS)
            assert_near(got.output_KH, rows[1:])
            want = walked(draft, int(tokens[last + 1]), rows[1:])
            assert got.token_ids_K.tolist() == want == proposals[last].tolist()
            plain += got.logits_KD.argmax(-1).tolist() == want
    assert plain < 13, "the selector must change some drafts"


@each_setting
def test_training_equals_drafting_on_the_true_prefix_in_every_document(settings):
    batch = pack([9, 13, 6], [3, 5, 2])
    anchor_R = Anchored.of(batch, TOKENS, 99).anchor_R
    check_training_equals_drafting(make_draft(**settings), batch, anchor_R, draft_block)


def test_an_untrained_draft_proposes_what_the_block_draft_beneath_it_does():
    plain_kind = algorithms.load("dflash")
    plain = make_block_draft("dflash", None, block_size=4)
    config = DFLASH2.Config(speculative_tokens=TOKENS, mask_token_id=MASK, **SIZES)
    draft = DFLASH2.build(config, verifier_weights(), torch.arange(VOCABULARY), AUX)
    draft.load_state_dict(plain.state_dict(), strict=False)
    tokens, states = sequence(14)
    proposals = [kind.propose(d, tokens, states, TOKENS) for kind, d in ((plain_kind, plain), (DFLASH2, draft))]
    assert torch.equal(*proposals)


@each_setting
def test_export_and_restore_are_inverse(settings):
    check_export_and_restore("dflash2", make_draft(**settings))


@pytest.mark.parametrize(("given", "said"), [
    ({"draft_vocab_size": 40}, r"draft_vocab_size = 40: .* Fix: leave it out"),
    ({"conv_kernel_size": 5}, r"conv_kernel_size = 5: a block has 4 rows .* Fix: use 4 or less"),
    ({"block_size": 8}, r"speculative_tokens = 3: .* Fix: use 7, or block_size 4"),
])  # fmt: skip
def test_settings_that_cannot_be_served_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        DFLASH2.Config(**{"speculative_tokens": TOKENS, "mask_token_id": MASK} | SIZES | given)


@pytest.mark.parametrize(("given", "said"), [
    ({"conv_group_size": 12}, r"conv_group_size = 12: does not divide the width, 32\. Fix: use 8"),
    ({"selector_top_k": 62}, r"selector_top_k = 62: of 61 tokens\. Fix: use less"),
])  # fmt: skip
def test_sizes_that_do_not_fit_the_verifier_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        make_draft(**given)


def test_a_checkpoint_of_a_reduced_vocabulary_is_refused():
    content, tensors = DFLASH2.export(make_draft())
    with pytest.raises(ValueError, match=r"draft_vocab_size = 40: .* Fix: use a draft of the whole vocabulary"):
        DFLASH2.restore(content | {"draft_vocab_size": 40}, tensors, verifier_weights())
