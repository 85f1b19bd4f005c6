"""A pack that is split over processes: losses, metrics and gradients of the parts add up to those of the whole."""

from dataclasses import replace

import pytest
import torch

import algorithms
from algorithms.contract import Pack
from tests.algorithms.small import SETTINGS, assert_near, make_config, make_draft, pack, verifier_weights

LENGTHS, PROMPTS = [14, 9, 21, 11], [3, 2, 6, 4]
CASES = [
    ("eagle3", {"ttt_steps": 3, "step_loss_decay": 0.8}),
    ("peagle", {}),
    ("peagle", {"max_anchors": 7}),
    ("dflash", {"max_anchors": 9}),
    ("dflash", {"max_anchors": 1}),  # one of the parts has no block at all
    ("dflash", {"position_weights": "dpace"}),
    ("dflash2", {"max_anchors": 9}),
    ("dspark", {"max_anchors": 9}),
    ("dspark", {"max_anchors": 1}),
]


def learner(algorithm, settings):
    settings = SETTINGS.get(algorithm, {}) | settings
    draft = make_draft(algorithm, **settings)
    return draft, algorithms.load(algorithm).objective(make_config(algorithm, **settings), verifier_weights(), draft)


def part(batch, documents):
    """What a process holds of the batch: some of its documents, and the masks of all."""
    own_S = torch.isin(batch.document_S, torch.tensor(documents))
    fields = ("token_ids_S", "aux_states_SAH", "last_state_SH", "loss_mask_S")
    numbers = batch.document_S[own_S].unique_consecutive(return_inverse=True)[1]
    whole = Pack(batch.loss_mask_S, batch.document_S, own_S)
    return replace(batch, document_S=numbers, pack=whole, **{f: getattr(batch, f)[own_S] for f in fields})


@pytest.mark.parametrize(("algorithm", "settings"), CASES)
def test_the_parts_of_a_pack_add_up_to_the_whole(algorithm, settings):
    draft, objective = learner(algorithm, settings)
    batch = pack(LENGTHS, PROMPTS, draw=5)

    def steps(batches):
        draft.zero_grad()
        outputs = [objective(each) for each in batches]
        for output in outputs:
            output.loss.backward()
        metrics = {name: sum(output.metrics[name] for output in outputs) for name in outputs[0].metrics}
        gradients = {name: p.grad for name, p in draft.named_parameters() if p.grad is not None}
        return sum(output.loss.detach() for output in outputs), metrics, gradients

    loss, metrics, gradients = steps([batch])
    loss_2, metrics_2, gradients_2 = steps([part(batch, [0, 3]), part(batch, [1, 2])])
    torch.testing.assert_close(loss_2, loss, rtol=1e-5, atol=0)
    assert metrics_2 == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    assert gradients.keys() == gradients_2.keys()
    for name, gradient in gradients.items():
        assert_near(gradients_2[name], gradient) if gradient.any() else None


def test_every_part_gives_every_trained_parameter_a_gradient_even_without_a_row_to_score():
    """Processes sum their gradients one after another: one that is missing would be added to the wrong one."""
    for algorithm, settings in CASES:
        draft, objective = learner(algorithm, settings)
        batch = pack(LENGTHS, PROMPTS, draw=5)
        missing = []
        for documents in ([0], [1], [2], [3]):
            draft.zero_grad()
            objective(part(batch, documents)).loss.backward()
            missing.append({name for name, p in draft.named_parameters() if p.requires_grad and p.grad is None})
        assert missing == [set()] * 4, (algorithm, settings)
