"""The selector's candidates by hand; the loss and its gradients against float64 autograd over the whole vocabulary."""

import math

import pytest
import torch

import algorithms
from algorithms.dflash.training import Anchored, block_states
from algorithms.dflash2.training import loss, with_target
from algorithms.features import Teacher
from tests.algorithms.dflash2.test_draft import SIZES, make_draft
from tests.algorithms.small import MASK, pack, places_of_block, verifier_weights, verifiers_chances

Config = algorithms.config_class("dflash2")
TOKENS = 3


def config(**changes):
    return Config(**{"speculative_tokens": TOKENS, "mask_token_id": MASK} | SIZES | changes)


def test_a_target_outside_the_candidates_takes_the_place_of_the_last():
    candidates, place, recalled = with_target(torch.tensor([[7, 3, 5], [7, 3, 5]]), torch.tensor([3, 9]))
    assert candidates.tolist() == [[7, 3, 5], [7, 3, 9]]
    assert place.tolist() == [1, 2] and recalled.tolist() == [True, False]


def by_hand(draft, batch, selector_weight):
    """Loss of the pack with a graph, in float64, row after row: contract 6.3 and 6.4. Also agreement and recall."""
    selector = draft.candidate_selector
    anchors = batch.loss_mask_S.nonzero().flatten().tolist()
    states = block_states(draft, batch, torch.tensor(anchors), TOKENS + 1)
    total, count, agree, recall = 0.0, 0, [], []
    for block, anchor in enumerate(anchors):
        for k, place in places_of_block(batch, anchor, TOKENS):
            p = verifiers_chances(batch, place, draft.draft_to_target_D)
            output = states[block, 1 + k].double()
            logits = draft.lm_head.weight.double() @ output
            target = int(p.argmax())
            ids = logits.detach().topk(draft.shape.selector_top_k).indices.tolist()
            recall.append(target in ids)
            if target not in ids:
                ids[-1] = target
            before = int(batch.token_ids_S[place])
            read = selector.hidden_projection.weight.double() @ output
            corrected = torch.stack([
                logits[v] + (selector.predecessor_codebook[before] * read * selector.successor_codebook[v]).sum()
                for v in ids
            ])  # fmt: skip
            agree.append(recall[-1] and ids[int(corrected.argmax())] == target)
            kl = (p * (p.log() - logits.log_softmax(-1))).sum()
            chosen = -corrected.log_softmax(-1)[ids.index(target)]
            total = total + math.exp(-k / 4) * (kl + selector_weight * chosen)
            count += 1
    return total / count, agree, recall


@pytest.mark.parametrize("settings", [{}, {"train_head": True, "selector_weight": 0.5}], ids=str)
def test_loss_and_gradients_equal_float64_over_the_whole_vocabulary(settings):
    draft = make_draft(selector_top_k=24, train_head=settings.get("train_head", False))
    batch = pack([34, 31], [4, 3], seed=7)
    knobs = config(**settings)
    found = loss(draft, Teacher.of(verifier_weights(), draft.draft_to_target_D), batch, knobs)
    found.loss.backward()
    gradients = {name: p.grad.clone() for name, p in draft.named_parameters() if p.grad is not None}
    draft.zero_grad()
    want, agree, recall = by_hand(draft, batch, knobs.selector_weight)
    want.backward()
    assert found.loss.item() == pytest.approx(want.item(), rel=1e-4)
    trained = {name for name, p in draft.named_parameters() if p.requires_grad}
    assert gradients.keys() == trained and ("lm_head.weight" in trained) == ("train_head" in settings)
    for name, parameter in draft.named_parameters():
        if name in trained:
            error = (gradients[name] - parameter.grad).norm() / parameter.grad.norm()
            assert float(error) < 1e-4, name
    assert any(recall) and not all(recall) and any(agree)
    # 30 and 28 anchors: each document has one second position less, and two third ones.
    for name, values in (("agree", agree), ("recall", recall)):
        told = [found.metrics[f"{name}_step_{k}"] * n for k, n in ((1, 58), (2, 56), (3, 54))]
        assert sum(told) == pytest.approx(sum(values))


def test_an_untrained_selector_learns_and_is_told_apart_from_the_logits():
    draft = make_draft()
    with torch.no_grad():
        draft.candidate_selector.successor_codebook.zero_()
    batch = pack([9, 6], [4, 3])
    out = loss(draft, Teacher.of(verifier_weights(), draft.draft_to_target_D), batch, config())
    assert all(out.metrics[f"agree_step_{k}"] <= out.metrics[f"recall_step_{k}"] for k in (1, 2, 3))
    assert all(out.metrics[f"agree_step_{k}"] == out.metrics[f"unary_agree_step_{k}"] for k in (1, 2, 3))
    out.loss.backward()
    touched = draft.candidate_selector.successor_codebook.grad.abs().sum(dim=1) > 0
    assert touched.any() and not touched.all(), "only rows of candidates have a gradient"
    before = set(batch.token_ids_S[Anchored.of(batch, TOKENS, 99).target_RK.flatten()].tolist())
    moved = draft.candidate_selector.predecessor_codebook.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert set(moved) <= before
