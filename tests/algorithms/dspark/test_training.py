"""The loss against float64 by hand in both layouts; what its gradient reaches; weights of positions and guess."""

import math

import pytest
import torch

import algorithms
from algorithms.dflash.training import block_states
from algorithms.dspark.training import loss
from algorithms.features import Teacher
from tests.algorithms.small import (
    MASK,
    check_a_step,
    make_draft,
    pack,
    places_of_block,
    verifier_weights,
    verifiers_chances,
)

Config = algorithms.config_class("dspark")
COUNT = 3
LAYOUTS = [{"block_size": COUNT}, {"block_size": COUNT + 1, "sample_from_anchor": False}]
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=["anchor drafts", "anchor does not"])


def made(layout, **changes):
    """(draft, settings, teacher)"""
    settings = layout | changes
    draft = make_draft("dspark", **settings)
    config = Config(**{"speculative_tokens": COUNT, "mask_token_id": MASK} | settings)
    return draft, config, Teacher.of(verifier_weights(), draft.draft_to_target_D)


def drafts_of(draft, batch, layout, anchors):
    """For each block its scored drafts, by the definition in float64: (p, q, log-odds of the confidence head)."""
    weights = {name: tensor.detach().double() for name, tensor in draft.named_parameters()}
    unused = layout["block_size"] - COUNT
    states = block_states(draft, batch, torch.tensor(anchors), layout["block_size"]).detach().double()
    for block, anchor in enumerate(anchors):
        scored = []
        for k, place in places_of_block(batch, anchor, COUNT):
            p = verifiers_chances(batch, place, draft.draft_to_target_D)
            output = states[block, k + unused]
            word = weights["markov_head.markov_w1.weight"][batch.token_ids_S[place]]
            q = weights["lm_head.weight"] @ output + weights["markov_head.markov_w2.weight"] @ word
            odds = weights["confidence_head.proj.weight"][0] @ torch.cat((output, word))
            scored.append((p, q.softmax(-1), float(odds + weights["confidence_head.proj.bias"][0])))
        yield scored


def kl(p, q):
    return float((p * (p.log() - q.log())).sum())


def surprise(p, q, odds):
    """Cross-entropy between the chance of acceptance and the guess."""
    chance, guess = float(torch.minimum(p, q).sum()), 1 / (1 + math.exp(-odds))
    return -(chance * math.log(guess) + (1 - chance) * math.log(1 - guess))


@each_layout
@pytest.mark.parametrize("weights", ["decay", "dpace"])
def test_the_loss_is_the_weighted_mean_of_divergence_and_surprise(layout, weights):
    draft, config, teacher = made(layout, position_weights=weights, confidence_weight=0.7)
    batch = pack([9, 6], [4, 3])
    total, guesses, count = 0.0, 0.0, 0
    for scored in drafts_of(draft, batch, layout, [4, 5, 6, 7, 8, 12, 13, 14]):
        fixed, reached, alive = [math.exp(-k / 4) for k in range(len(scored))], [], 1.0
        for p, q, _ in scored:
            alive *= 0.5 * float(q[p.argmax()]) + 0.5
            reached.append(alive)
        asked = fixed if weights == "decay" else [sum(reached[k:]) for k in range(len(reached))]
        total += sum(weight * kl(p, q) for weight, (p, q, _) in zip(asked, scored, strict=True))
        guesses += sum(weight * surprise(*each) for weight, each in zip(fixed, scored, strict=True))
        count += len(scored)
    found = loss(draft, teacher, batch, config)
    assert found.loss.item() == pytest.approx((total + 0.7 * guesses) / count, rel=1e-4)


@each_layout
def test_metrics_are_means_over_the_drafts_at_a_position(layout):
    draft, config, teacher = made(layout)
    batch = pack([9, 6], [4, 3])
    blocks = list(drafts_of(draft, batch, layout, [4, 5, 6, 7, 8, 12, 13, 14]))
    metrics = loss(draft, teacher, batch, config).metrics
    for k in range(COUNT):
        here = [scored[k] for scored in blocks if len(scored) > k]
        want = {
            "loss": [kl(p, q) for p, q, _ in here],
            "agree": [float(p.argmax() == q.argmax()) for p, q, _ in here],
            "overlap": [float(torch.minimum(p, q).sum()) for p, q, _ in here],
            "guess": [1 / (1 + math.exp(-odds)) for *_, odds in here],
        }
        for name, values in want.items():
            assert metrics[f"{name}_step_{k + 1}"] == pytest.approx(sum(values) / len(values), rel=1e-4)


def test_both_layouts_score_the_same_drafts_against_the_same_targets():
    batch = pack([9, 6], [4, 3])
    draft, config, teacher = made(LAYOUTS[1], layers=1)
    # Blind to its own rows and the context alike, a draft says the same whatever the row: layouts then agree.
    for layer in draft.layers:
        layer.self_attn.o_proj.weight.data.zero_()
    draft.embedding_VH.copy_(torch.randn(32).expand(draft.embedding_VH.shape))
    other, anchored, _ = made(LAYOUTS[0], layers=1)
    other.load_state_dict(draft.state_dict())
    other.embedding_VH.copy_(draft.embedding_VH)
    a, b = loss(draft, teacher, batch, config), loss(other, teacher, batch, anchored)
    assert a.loss.item() == pytest.approx(b.loss.item(), rel=1e-6) and a.metrics == pytest.approx(b.metrics, rel=1e-6)


@each_layout
def test_the_gradient_reaches_the_rows_of_the_previous_tokens_only(layout):
    draft, config, teacher = made(layout)
    batch = pack([9, 6], [4, 3])
    loss(draft, teacher, batch, config).loss.backward()
    read = {int(token) for token in torch.cat((batch.token_ids_S[4:9], batch.token_ids_S[12:15]))}
    touched = draft.markov_head.markov_w1.weight.grad.any(dim=1).nonzero().flatten().tolist()
    assert set(touched) == read
    assert draft.markov_head.markov_w2.weight.grad.any(dim=1).all()
    assert draft.confidence_head.proj.bias.grad.any()


def test_the_guess_does_not_pull_its_own_target():
    """The chance of acceptance is a constant: a head that reads nothing sends no gradient into the draft."""
    draft, config, teacher = made(LAYOUTS[0], confidence_weight=1e3)
    batch = pack([9, 6], [4, 3])
    with torch.no_grad():
        draft.confidence_head.proj.weight.zero_()
    loss(draft, teacher, batch, config).loss.backward()
    found = draft.fc.weight.grad.clone(), draft.markov_head.markov_w2.weight.grad.clone()
    draft.zero_grad()
    draft.confidence_head = None
    loss(draft, teacher, batch, config).loss.backward()
    assert found[0].any()
    torch.testing.assert_close(found, (draft.fc.weight.grad, draft.markov_head.markov_w2.weight.grad))


def test_without_a_confidence_head_the_loss_is_the_divergence_alone():
    draft, config, teacher = made(LAYOUTS[0], confidence_head=False)
    batch = pack([9], [8])
    found = loss(draft, teacher, batch, config)
    assert found.loss.item() == pytest.approx(found.metrics["loss_step_1"], rel=1e-4)
    assert not any(name.startswith("guess") for name in found.metrics)


def test_reduced_precision_leaves_the_loss_near_and_in_float32():
    draft, config, teacher = made(LAYOUTS[0])
    batch = pack([30, 20], [4, 3])
    exact = loss(draft, teacher, batch, config).loss.item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reduced = loss(draft, teacher, batch, config).loss
    assert reduced.dtype == torch.float32 and reduced.item() == pytest.approx(exact, rel=0.02)
    reduced.backward()


def test_a_step_trains_the_draft_and_leaves_the_verifiers_part_alone():
    draft, config, teacher = made(LAYOUTS[0])
    check_a_step(draft, lambda batch: loss(draft, teacher, batch, config))
