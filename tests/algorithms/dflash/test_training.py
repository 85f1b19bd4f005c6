"""Anchors, targets and weights by hand; the loss against float64 probabilities; what a step changes."""

import math

import pytest
import torch

import algorithms
from algorithms.dflash.training import Anchored, block_states, loss
from algorithms.features import Teacher
from tests.algorithms.small import (
    MASK,
    alone_and_twice,
    check_a_step,
    make_draft,
    pack,
    places_of_block,
    verifier_weights,
    verifiers_chances,
)

Config = algorithms.config_class("dflash")


def config(**changes) -> Config:
    return Config(**{"speculative_tokens": 3, "block_size": 4, "mask_token_id": MASK} | changes)


def test_blocks_are_anchored_at_assistant_tokens_and_scored_within_their_document():
    # Documents of 6 and 5 tokens whose replies start at 3 and 2: positions 3, 4, 5 and 8, 9, 10 of the pack.
    blocks = Anchored.of(pack([6, 5], [3, 2]), count=3, max_anchors=99)
    assert blocks.anchor_R.tolist() == [3, 4, 5, 8, 9, 10]
    assert blocks.target_RK[0].tolist() == [3, 4, 5] and blocks.target_RK[2].tolist() == [5, 6, 7]
    assert blocks.valid_RK.tolist() == [[True, True, True], [True, True, False], [True, False, False]] * 2


def test_a_block_ends_where_the_assistants_turn_ends():
    batch = pack([8], [2])
    batch.loss_mask_S[4] = False
    blocks = Anchored.of(batch, count=4, max_anchors=99)
    assert blocks.anchor_R.tolist() == [2, 3, 5, 6, 7]
    assert blocks.valid_RK.sum(dim=1).tolist() == [2, 1, 3, 2, 1]


def test_the_same_draw_gives_the_same_anchors_and_another_draw_gives_others():
    drawn = [Anchored.of(pack([40], [4], draw=draw), 3, 8).anchor_R for draw in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert all(len(set(anchor_R.tolist())) == 8 and bool((anchor_R >= 4).all()) for anchor_R in drawn)
    assert all(anchor_R.tolist() == sorted(anchor_R.tolist()) for anchor_R in drawn)


def test_the_global_random_state_is_neither_read_nor_written():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    Anchored.of(pack([40], [4], draw=1), 3, 8)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_pack_without_an_assistant_token_is_refused():
    with pytest.raises(ValueError, match="without an assistant token"):
        Anchored.of(pack([6], [6]), 3, 8)


@torch.no_grad()
def by_hand(draft, batch, anchors, weights_of_block):
    """Loss of the pack in float64, row after row: contract 6.0 and 6.3."""
    states = block_states(draft, batch, torch.tensor(anchors), 4).double()
    total, count = 0.0, 0
    for block, anchor in enumerate(anchors):
        kept, losses, cross_entropies = [], [], []
        for k, place in places_of_block(batch, anchor, 3):
            p = verifiers_chances(batch, place, draft.draft_to_target_D)
            q = (draft.lm_head.weight.double() @ states[block, 1 + k]).softmax(-1)
            losses.append(float((p * (p.log() - q.log())).sum()))
            cross_entropies.append(float(-q[p.argmax()].log()))
            kept.append(k)
        total += sum(w * v for w, v in zip(weights_of_block(cross_entropies), losses, strict=True))
        count += len(kept)
    return total / count


def decay(cross_entropies):
    return [math.exp(-k / 4) for k in range(len(cross_entropies))]


def dpace(cross_entropies):
    reached, alive = [], 1.0
    for value in cross_entropies:
        alive *= 0.5 * math.exp(-value) + 0.5
        reached.append(alive)
    return [sum(reached[k:]) for k in range(len(reached))]


@pytest.mark.parametrize("weights", [decay, dpace])
def test_the_loss_is_the_weighted_mean_over_scored_rows(weights):
    draft = make_draft("dflash", block_size=4)
    batch = pack([9, 6], [4, 3])
    teacher = Teacher.of(verifier_weights(), draft.draft_to_target_D)
    found = loss(draft, teacher, batch, config(position_weights=weights.__name__))
    want = by_hand(draft, batch, [4, 5, 6, 7, 8, 12, 13, 14], weights)
    assert found.loss.item() == pytest.approx(want, rel=1e-4)
    assert set(found.metrics) == {f"{name}_step_{k}" for name in ("loss", "agree") for k in (1, 2, 3)}


def test_another_document_in_the_pack_does_not_change_the_loss():
    draft = make_draft("dflash", block_size=4)
    teacher = Teacher.of(verifier_weights(), draft.draft_to_target_D)
    alone, both = (loss(draft, teacher, batch, config()) for batch in alone_and_twice())
    assert both.loss.item() == pytest.approx(alone.loss.item(), rel=1e-4)
    assert both.metrics == pytest.approx(alone.metrics, rel=1e-4)


def test_a_step_trains_the_draft_and_leaves_the_verifiers_part_alone():
    draft = make_draft("dflash", block_size=4)
    teacher = Teacher.of(verifier_weights(), draft.draft_to_target_D)
    check_a_step(draft, lambda batch: loss(draft, teacher, batch, config()))
