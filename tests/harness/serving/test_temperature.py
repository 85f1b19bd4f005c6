"""A request's sampling settings for each of its draft tokens."""

import pytest
import torch

from harness.serving.cpu_support.temperature import expanded
from tests.interop.serving import needs_cpu_build

CUMULATIVE = torch.tensor([2, 2, 5], dtype=torch.int32)  # 2, 0 and 3 draft tokens


def test_each_draft_token_gets_the_setting_of_its_request():
    temperature = torch.tensor([0.8, 0.5, 1.3])
    found = expanded(temperature, CUMULATIVE, 5)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx([0.8, 0.8, 1.3, 1.3, 1.3])
    assert expanded(torch.tensor([7, 8, 9], dtype=torch.int32), CUMULATIVE, 5).tolist() == [7, 7, 9, 9, 9]


def test_a_greedy_request_among_sampled_ones_divides_by_one():
    found = expanded(torch.tensor([0.0, 0.5, 1.3]), CUMULATIVE, 5, replace_from=0, replace_to=1)
    assert found.tolist() == pytest.approx([1.0, 1.0, 1.3, 1.3, 1.3])


@needs_cpu_build
@pytest.mark.slow
def test_the_cpu_build_as_it_is_shipped_loses_the_temperature():
    """Once this fails, vLLM has mended it and the repair can go."""
    import vllm._C  # noqa: F401 - registers the kernels
    from vllm.utils.cpu_triton_utils import _expand_kernel_impl

    written = torch.full((5,), -1.0)
    _expand_kernel_impl(written, torch.tensor([0.8, 0.5, 1.3]), CUMULATIVE, 0, 1, MAX_NUM_TOKENS=128)
    assert written.tolist() == [-1.0] * 5
