"""Drafting against the engine's one dense pass, and training's entries against masks built from their definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import algorithms
from algorithms.eagle3.training import rows_of
from algorithms.peagle.config import Config
from algorithms.peagle.drafting import draft_steps
from algorithms.peagle.training import entry_outputs, sample_depths
from tests.algorithms.dense import dense_forward, rms
from tests.algorithms.small import MASK, assert_near, check_export_and_restore, pack, sequence, start_of_document
from tests.algorithms.small import make_draft as make

PEAGLE = algorithms.load("peagle")
FLAGS = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True, "architecture": "qwen3"},
    {"layers": 2},
    # A cut of the masks shows from the second layer on: in the first one all masks have the same values.
    {"layers": 2, "architecture": "qwen3", "sliding_window": 2},
    {"sliding_window": 4},
    {"draft_vocab_size": None, "train_embedding": True, "train_head": True},
]
each_flag = pytest.mark.parametrize("flags", FLAGS, ids=str)


def make_draft(**flags):
    return make("peagle", **flags)


def table(draft):
    return draft.embed_tokens.weight if draft.shape.own_embedding else draft.embedding_VH


def fused(draft, joined):
    weights = dict(draft.named_parameters())
    joined = rms(joined, weights["input_norm.weight"]) if draft.shape.norm_before_fc else joined
    return joined @ weights["fc.weight"].T


def dense_drafts(draft, tokens, states, count):
    """Contract 4.3: the context's slots and the masks behind them as one causal sequence."""
    read = torch.cat((tokens[1:], torch.full((count - 1,), MASK)))
    masks = draft.mask_hidden.view(1, -1).expand(count - 1, -1)
    positions = torch.arange(len(read))
    gap = positions[:, None] - positions
    seen = (gap >= 0) & (gap < (draft.shape.sliding_window or len(read)))
    inputs = table(draft)[read], fused(draft, torch.cat((states.flatten(1), masks)))
    output = dense_forward(draft, *inputs, positions, seen)[1][-count:]
    return draft.draft_to_target_D[(output @ draft.lm_head.weight.T).argmax(dim=-1)], output


@each_flag
def test_drafting_equals_one_dense_pass_over_context_and_masks(flags):
    draft = make_draft(**flags)
    tokens, states = sequence(14)
    proposals = PEAGLE.propose(draft, tokens, states, 5)
    assert proposals.shape == (13, 5)
    for last in (0, 1, 6, 12):
        want, outputs = dense_drafts(draft, tokens[: last + 2], states[: last + 1], 5)
        got = draft_steps(draft, tokens[: last + 2], states[: last + 1], 5)
        assert got.token_ids_K.tolist() == want.tolist() == proposals[last].tolist()
        assert_near(got.output_KH, outputs)


@each_flag
def test_fewer_drafts_are_the_first_of_more(flags):
    draft = make_draft(**flags)
    tokens, states = sequence(9)
    assert torch.equal(PEAGLE.propose(draft, tokens, states, 2), PEAGLE.propose(draft, tokens, states, 5)[:, :2])


def dense_entries(draft, batch, rows, chosen):
    """Every entry of every depth as one sequence of slots whose mask is written down from contract 6.2."""
    slots, anchors = rows.slot_S, [rows.slot_S, *(rows.slot_S[rows.scored_R[kept]] for kept in chosen[1:])]
    anchor = torch.cat(anchors)
    depth = torch.cat([torch.full((len(part),), number) for number, part in enumerate(anchors)])
    read = torch.cat((batch.token_ids_S[slots + 1], torch.full((len(anchor) - len(slots),), MASK)))
    masks = draft.mask_hidden.view(1, -1).expand(len(anchor) - len(slots), -1)
    document, place = batch.document_S[anchor], anchor + depth
    same_document = document[:, None] == document
    context = same_document & (depth == 0) & (anchor <= anchor[:, None])
    own = (anchor == anchor[:, None]) & (depth <= depth[:, None])
    seen = (context | own) & (place[:, None] - place < (draft.shape.sliding_window or len(place)))
    state = fused(draft, torch.cat((batch.aux_states_SAH[slots].flatten(1), masks)))
    output = dense_forward(draft, table(draft)[read], state, place, seen)[1]
    scored = torch.zeros(len(anchor), dtype=torch.bool)
    scored[rows.scored_R] = True
    return output[scored | (depth > 0)]


@given(
    st.lists(st.tuples(st.integers(2, 12), st.integers(1, 4)), min_size=1, max_size=4),
    st.sampled_from(FLAGS),
    st.integers(0, 2**40),
    st.integers(1, 20),
    st.sampled_from([0.7, 1.0]),
)
@settings(deadline=None, max_examples=60)
def test_training_computes_each_entry_from_exactly_what_its_definition_says(sizes, flags, draw, max_anchors, ratio):
    draft = make_draft(**flags)
    batch = pack([length for length, _ in sizes], [min(prompt, length - 1) for length, prompt in sizes])
    rows = rows_of(batch, 5)
    config = Config(speculative_tokens=2, mask_token_id=MASK, num_depths=5, max_anchors=max_anchors, sample_ratio=ratio)
    chosen = sample_depths(rows.valid_RK, config, draw)
    assert_near(entry_outputs(draft, batch, rows, chosen), dense_entries(draft, batch, rows, chosen))


@each_flag
def test_training_equals_drafting_from_the_true_prefix_in_every_document(flags):
    draft = make_draft(**flags)
    batch = pack([9, 13, 6], [3, 5, 2])
    rows = rows_of(batch, 4)
    chosen = [rows.valid_RK[:, depth].nonzero().squeeze(1) for depth in range(4)]
    outputs = entry_outputs(draft, batch, rows, chosen).split([len(kept) for kept in chosen])
    checked = 0
    for depth, kept in enumerate(chosen):
        for output, slot in zip(outputs[depth], rows.slot_S[rows.scored_R[kept]].tolist(), strict=True):
            start = start_of_document(batch, slot)
            want = draft_steps(
                draft, batch.token_ids_S[start : slot + 2], batch.aux_states_SAH[start : slot + 1], depth + 1
            )
            assert_near(output, want.output_KH[depth])
            checked += 1
    assert checked == int(rows.valid_RK.sum()) > 30


@each_flag
def test_export_and_restore_are_inverse(flags):
    check_export_and_restore("peagle", make_draft(**flags))


CHANGES = [
    *({name: True} for name in ("norm_before_residual", "norm_before_fc")),
    {"architecture": "qwen3"},
    {"sliding_window": 3},
    {"layers": 1},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_each_setting_changes_what_is_drafted_from(change):
    tokens, states = sequence(14)
    plain, changed = make_draft(layers=2), make_draft(**{"layers": 2} | change)
    # The same weights wherever both have them, so that only the setting can make a difference.
    shared = {name: tensor for name, tensor in plain.state_dict().items() if name in changed.state_dict()}
    changed.load_state_dict(shared, strict=False)
    a, b = (draft_steps(draft, tokens, states[:13], 3).output_KH for draft in (plain, changed))
    assert float((a - b).norm() / a.norm()) > 1e-2


def test_masks_read_the_row_of_the_embedding_that_is_the_drafts_own():
    tokens, states = sequence(9)
    draft = make_draft(train_embedding=True)
    before = draft_steps(draft, tokens, states[:8], 3).output_KH
    with torch.no_grad():
        draft.embed_tokens.weight[MASK] += 1
    after = draft_steps(draft, tokens, states[:8], 3).output_KH
    assert torch.equal(before[0], after[0]) and not torch.allclose(before[1], after[1])
