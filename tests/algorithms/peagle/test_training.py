"""COD sampling's laws, the loss by hand in float64, and what a step of training moves."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.nn import functional as F

import algorithms
from algorithms.eagle3.training import rows_of
from algorithms.features import Teacher
from algorithms.peagle.config import Config
from algorithms.peagle.drafting import draft_steps
from algorithms.peagle.training import loss, sample_depths
from algorithms.tables import is_table
from tests.algorithms.small import EPSILON, MASK, make_draft, pack, start_of_document, verifier_weights

PEAGLE = algorithms.load("peagle")


def config(**changes) -> Config:
    return Config(**{"speculative_tokens": 2, "mask_token_id": MASK} | changes)


def valid_rows(runs: list[int], depths: int) -> torch.Tensor:
    """Rows of replies of these lengths: row i of a reply of n is scored to depth n - 1 - i."""
    left = torch.cat([torch.arange(run, 0, -1) for run in runs])
    return left[:, None] > torch.arange(depths)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(1, 9),
    st.floats(0.05, 1.0),
    st.floats(0.0, 1.0),
    st.integers(1, 80),
    st.integers(0, 2**40),
)
@settings(deadline=None, max_examples=150)
def test_deeper_rows_are_rows_of_the_depth_before_that_are_scored_and_as_many_as_the_rule_says(
    runs, depths, ratio, ratio_min, max_anchors, draw
):
    valid = valid_rows(runs, depths)
    said = config(
        speculative_tokens=1, num_depths=depths, sample_ratio=ratio, sample_ratio_min=ratio_min, max_anchors=max_anchors
    )
    chosen = sample_depths(valid, said, draw)
    seeds = min(max_anchors, len(valid))
    assert chosen[0].tolist() == list(range(len(valid)))
    for depth, (before, kept) in enumerate(pairwise(chosen), 1):
        assert set(kept.tolist()) <= set(before.tolist())
        assert kept.tolist() == sorted(set(kept.tolist()))
        assert bool(valid[kept, depth].all())
        wanted = int((seeds - depth) * max(ratio**depth, ratio_min))
        assert 0 < len(kept) <= wanted
        if depth > 1:  # of depth 1 the pool is a random part of the rows
            assert len(kept) == min(wanted, int(valid[before, depth].sum()))


def test_the_counts_of_a_long_reply_are_those_of_the_rule():
    chosen = sample_depths(valid_rows([200], 8), config(), draw=1)
    assert [len(kept) for kept in chosen] == [200, 139, 97, 67, 47, 39, 38, 38]


def test_what_is_drawn_follows_from_the_batchs_number_alone():
    valid, said = valid_rows([60, 30], 4), config(num_depths=4, max_anchors=50)
    torch.manual_seed(0)
    first = sample_depths(valid, said, draw=7)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    again, other = sample_depths(valid, said, draw=7), sample_depths(valid, said, draw=8)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[1], other[1])


def test_the_loss_is_the_mean_divergence_of_all_entries_by_hand_in_float64():
    draft, batch, said = make_draft("peagle"), pack([8, 5], [3, 2], draw=3), config(num_depths=3)
    teacher = Teacher.of(verifier_weights(), draft.draft_to_target_D)
    rows = rows_of(batch, 3)
    verifier = verifier_weights()
    normed = F.rms_norm(batch.last_state_SH.double(), (32,), verifier.final_norm_H.double(), EPSILON)
    target = (normed @ verifier.head_VH[draft.draft_to_target_D].double().T).log_softmax(-1)
    losses, agree = [], []
    for depth, kept in enumerate(sample_depths(rows.valid_RK, said, 3)):
        for slot in rows.slot_S[rows.scored_R[kept]].tolist():
            start = start_of_document(batch, slot)
            at = draft_steps(draft, batch.token_ids_S[start : slot + 2], batch.aux_states_SAH[start : slot + 1], 3)
            log_q = (at.output_KH[depth].double() @ draft.lm_head.weight.double().T).log_softmax(-1)
            log_p = target[slot + 1 + depth]
            losses.append((log_p.exp() * (log_p - log_q)).sum())
            agree.append((depth, log_q.argmax() == log_p.argmax()))
    found = loss(draft, teacher, batch, said)
    assert found.loss.item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-4)
    assert found.loss.requires_grad
    for depth in range(3):
        hits = [bool(hit) for d, hit in agree if d == depth]
        assert found.metrics[f"agree_step_{depth + 1}"] == pytest.approx(sum(hits) / len(hits))
    counts = [sum(d == depth for d, _ in agree) for depth in range(3)]
    steps = sum(found.metrics[f"loss_step_{depth + 1}"] * count for depth, count in enumerate(counts))
    assert steps / sum(counts) == pytest.approx(found.loss.item(), rel=1e-4)


@pytest.mark.parametrize("flags", [{}, {"train_head": True, "train_embedding": True}], ids=str)
def test_a_step_trains_all_that_is_the_drafts_own_and_leaves_the_verifiers_part_alone(flags):
    verifier = verifier_weights()
    said = config(num_depths=3, **flags)
    draft = PEAGLE.build(said, verifier, torch.arange(61), [1, 2, 4])
    embedding, head = verifier.embedding_VH.clone(), verifier.head_VH.clone()
    trainable = {name: p.detach().clone() for name, p in draft.named_parameters() if p.requires_grad}
    assert ("lm_head.weight" in trainable) == ("embed_tokens.weight" in trainable) == bool(flags)
    assert "mask_hidden" in trainable
    if flags:
        assert is_table(draft.embed_tokens.weight)
    PEAGLE.objective(said, verifier, draft)(pack([9, 13], [3, 5])).loss.backward()
    torch.optim.AdamW([p for p in draft.parameters() if p.requires_grad], lr=1e-2).step()
    assert torch.equal(embedding, verifier.embedding_VH) and torch.equal(head, verifier.head_VH)
    assert all(not torch.equal(trainable[name], p) for name, p in draft.named_parameters() if name in trainable)


def test_a_pack_without_a_reply_is_an_error_with_a_fix():
    draft = make_draft("peagle")
    batch = pack([5], [5])
    with pytest.raises(ValueError, match="Fix: drop"):
        loss(draft, Teacher.of(verifier_weights(), draft.draft_to_target_D), batch, config())


def test_more_tokens_than_trained_depths_are_refused():
    assert config(speculative_tokens=8).num_depths == 8
    with pytest.raises(ValidationError, match=r"speculative_tokens = 9: only 8 are trained .* Fix: use at most 8"):
        config(speculative_tokens=9)


@pytest.mark.parametrize("flag", ["fc_norm", "norm_output"])
def test_flags_that_the_server_has_no_place_for_are_no_settings(flag):
    with pytest.raises(ValidationError, match=flag):
        config(**{flag: True})


def test_a_mask_token_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"mask_token_id = 61: the verifier has 61 tokens\. Fix: "):
        PEAGLE.build(config(mask_token_id=61), verifier_weights(), torch.arange(61), [1, 2, 4])
