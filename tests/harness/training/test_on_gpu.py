"""A GPU computes what a CPU does, and each takes up the other's state."""

import pytest
import torch

from harness.training.distributed import World
from harness.training.loop import resume, train
from tests.harness.training.together import KINDS, name_of, prepared

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
# Kernels of a GPU add up in another order, and some in TensorFloat-32.
TOLERANCE = 1e-2
WAYS = [{}, {"gradient_checkpointing": True}, {"compile": True, "gradient_checkpointing": True}]


def losses(place, state, kind, device, **training):
    run = prepared(place, state, kind, World(device=torch.device(device)), **training)
    resume(run, restart_if_changed=True)
    train(run)
    return [row["loss"] for row in run.metrics if "loss" in row]


@pytest.mark.parametrize("ways", WAYS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_a_gpu_trains_as_a_cpu_does(place, tmp_path, kind, ways):
    there, here = losses(place, tmp_path / "gpu", kind, "cuda", **ways), losses(place, tmp_path / "cpu", kind, "cpu")
    assert there == pytest.approx(here, rel=TOLERANCE)


def test_a_state_of_a_gpu_is_taken_up_by_a_cpu(place, tmp_path):
    first = losses(place, tmp_path, KINDS[0], "cuda")
    run = prepared(place, tmp_path, KINDS[0], World())
    resume(run)
    assert run.steps == len(first) and "machine.device" in run.other_machines[0]
    assert all(parameter.device.type == "cpu" for parameter in run.draft.parameters())
