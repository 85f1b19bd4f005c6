"""The draft against the engine's block computed row by row, training against drafting, the checkpoint."""

import pytest
import torch
from torch.nn import functional as F

import algorithms
from algorithms.dflash.training import Anchored, block_states
from algorithms.dflash2.drafting import draft_block
from tests.algorithms.dflash.small import (
    AUX,
    HEAD,
    MASK,
    VOCABULARY,
    WIDTH,
    assert_near,
    pack,
    rms,
    sequence,
    turned,
    verifier_weights,
)
from tests.algorithms.dflash.small import make_draft as make_block_draft

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
    base, size = weights[f"{name}.base_kernel"], draft.shape.conv_group_size
    out = []
    for p in range(len(rows)):
        own = (weights[f"{name}.kernel_projection.weight"] @ normed[p]).view(2, base.shape[1], WIDTH // size)
        taps = range(min(base.shape[1], p + 1))
        out.append(sum((base[side, t] + own[side, t].repeat_interleave(size)) * rows[p - t] for t in taps))
    return torch.stack(out)


def dense_block(draft, token, states, rows):
    """One block behind S context positions with plain tensors: contract 4.4 and 4.6."""
    weights, shape = dict(draft.named_parameters()), draft.shape
    own = torch.arange(rows) + len(states)
    everything = torch.arange(len(states) + rows)
    gap = own[:, None] - everything
    seen = gap.abs() < (shape.sliding_window or 10**6)
    seen = seen & (gap >= 0) if shape.causal else seen
    context = rms(states.flatten(1) @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    state = draft.embedding_VH[torch.tensor([token] + [MASK] * (rows - 1))]
    for depth in range(shape.layer["num_hidden_layers"]):
        at = f"layers.{depth}"
        get = lambda name, at=at: weights[f"{at}.{name}.weight"]  # noqa: E731
        normed = rms(state, get("input_layernorm"))
        read = convolved(draft, f"{at}.attention_conv", normed, normed, 0)
        both = torch.cat((context, read))
        q = (read @ get("self_attn.q_proj").T).view(rows, -1, HEAD)
        k, v = ((both @ get(f"self_attn.{name}_proj").T).view(len(both), -1, HEAD) for name in "kv")
        q = turned(rms(q, get("self_attn.q_norm")), own)
        k = turned(rms(k, get("self_attn.k_norm")), everything).repeat_interleave(2, 1)
        score = (torch.einsum("qhd,khd->hqk", q, k) * HEAD**-0.5).masked_fill(~seen, float("-inf"))
        mixed = torch.einsum("hqk,khd->qhd", score.softmax(-1), v.repeat_interleave(2, 1)).reshape(rows, -1)
        state = state + convolved(draft, f"{at}.attention_conv", mixed @ get("self_attn.o_proj").T, normed, 1)
        normed = rms(state, get("post_attention_layernorm"))
        read = convolved(draft, f"{at}.mlp_conv", normed, normed, 0)
        gated = F.silu(read @ get("mlp.gate_proj").T) * (read @ get("mlp.up_proj").T)
        state = state + convolved(draft, f"{at}.mlp_conv", gated @ get("mlp.down_proj").T, normed, 1)
    return rms(state, weights["norm.weight"])


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
            rows = dense_block(draft, int(tokens[last + 1]), states[: last + 1], TOKENS + 1)
            got = draft_block(draft, tokens[: last + 2], states[: last + 1], TOKENS)
            assert_near(got.output_KH, rows[1:])
            want = walked(draft, int(tokens[last + 1]), rows[1:])
            assert got.token_ids_K.tolist() == want == proposals[last].tolist()
            plain += got.logits_KD.argmax(-1).tolist() == want
    assert plain < 13, "the selector must change some drafts"


@each_setting
def test_training_equals_drafting_on_the_true_prefix_in_every_document(settings):
    draft = make_draft(**settings)
    batch = pack([9, 13, 6], [3, 5, 2])
    anchors = Anchored.of(batch, TOKENS, 99).anchor_R
    states_RTH = block_states(draft, batch, anchors, TOKENS + 1)
    for row, anchor in enumerate(anchors.tolist()):
        first = int((batch.document_S == batch.document_S[anchor]).nonzero()[0])
        prefix = batch.token_ids_S[first : anchor + 1], batch.aux_states_SAH[first:anchor]
        assert_near(states_RTH[row, 1:], draft_block(draft, *prefix, TOKENS).output_KH)


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
    draft = make_draft(**settings)
    content, tensors = DFLASH2.export(draft)
    again = DFLASH2.restore(content, tensors, verifier_weights())
    assert DFLASH2.export(again)[0] == content and again.shape == draft.shape
    assert all(torch.equal(a, b) for a, b in zip(draft.state_dict().values(), again.state_dict().values(), strict=True))
    assert "d2t" not in tensors
    tokens, states = sequence(7)
    assert torch.equal(DFLASH2.propose(draft, tokens, states, 3), DFLASH2.propose(again, tokens, states, 3))


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
