"""Cosines, sines and turned heads are vLLM's own, bit by bit: its tables are what the drafts are served with."""

import pytest
import torch

from algorithms.layers import Rotary
from tests.algorithms.test_shared import ROPES
from tests.interop.serving import needs_cpu_build

pytestmark = [pytest.mark.slow, needs_cpu_build]

PARTIAL = {
    "partial": ROPES["default"] | {"partial_rotary_factor": 0.25},
    "partial_yarn": ROPES["yarn"] | {"partial_rotary_factor": 0.5},
}


@pytest.mark.parametrize("name", [*ROPES, *PARTIAL])
def test_heads_are_turned_as_vllm_turns_them(name):
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    rope, positions = (ROPES | PARTIAL)[name], torch.tensor([0, 1, 1000, 3000, 8000])
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(len(positions), 3, 64, generator=generator)
    with set_current_vllm_config(VllmConfig()):
        served = get_rope(64, 8192, True, rope, torch.float32)
        want, _ = served.forward_native(positions, heads.flatten(1), heads.flatten(1))
    angles = Rotary(rope, 64).angles(positions)
    assert torch.equal(torch.cat(angles, dim=-1)[:, 0], served.cos_sin_cache[positions])
    torch.testing.assert_close(Rotary.rotate(heads, angles).flatten(1), want, rtol=0, atol=1e-6)
