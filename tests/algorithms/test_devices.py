"""Training and drafting make every tensor on the device of what they read, whatever PyTorch's default is."""

import pytest
import torch

import algorithms
from tests.algorithms.small import SETTINGS, make_config, make_draft, pack, sequence, verifier_weights

MORE = {
    "eagle3": [{}, {"step_loss_decay": 0.8, "sliding_window": 4}],
    "dflash": [{}, {"position_weights": "dpace", "max_anchors": 3}],
    "dspark": [{}, {"sample_from_anchor": False, "block_size": 4}, {"confidence_head": False}],
}


@pytest.mark.parametrize("algorithm", algorithms.NAMES)
def test_no_tensor_of_a_step_or_of_drafting_is_made_on_the_default_device(algorithm):
    kind = algorithms.load(algorithm)
    for more in MORE.get(algorithm, [{}]):
        settings = SETTINGS.get(algorithm, {}) | more
        draft = make_draft(algorithm, **settings)
        objective = kind.objective(make_config(algorithm, **settings), verifier_weights(), draft)
        batch, (tokens, states) = pack([9, 13], [3, 5]), sequence(12)
        # What is made without a device lies on "meta" here, and does not go with anything on the CPU.
        with torch.device("meta"):
            objective(batch).loss.backward()
            drafts = kind.propose(draft, tokens, states, 3, first=2)
        assert drafts.device.type == "cpu"
        assert all(p.grad is None or p.grad.device.type == "cpu" for p in draft.parameters())
