"""Eight bits: rounding worked by hand, bounds for any weight, and the section that vLLM reads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.quantisation.schemes import SCHEMES, quantise, quantization_config, relative_error


def test_each_row_has_its_own_scale_and_rounds_to_the_nearest():
    # Row 1: largest 2.54, scale 0.02; 0.031 is 1.55 of it. Row 2: largest 127, scale 1.
    weight = torch.tensor([[2.54, -2.54, 0.031], [127.0, -1.4, 0.6]])
    q, scale = quantise(weight, "int8")
    assert scale.flatten().tolist() == pytest.approx([0.02, 1.0])
    assert q.tolist() == [[127, -127, 2], [127, -1, 1]] and q.dtype == torch.int8


def test_a_row_of_zeros_stays_zeros():
    for scheme in SCHEMES:
        q, scale = quantise(torch.zeros(2, 4), scheme)
        assert torch.isfinite(scale).all() and (q.float() == 0).all()


def test_the_error_is_what_changed_over_what_there_was():
    # 3 and 4 become 3 and 4.5: 0.5 of 5.
    q, scale = torch.tensor([[2, 3]], dtype=torch.int8), torch.tensor([[1.5]])
    assert relative_error(torch.tensor([[3.0, 4.0]]), q, scale) == pytest.approx(0.1)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(SCHEMES)), st.integers(0, 2**31), st.floats(1e-3, 1e3))
def test_no_weight_moves_by_more_than_its_row_allows(scheme, seed, size):
    """int8: half a step of the row's scale; fp8: half of the last of three mantissa bits, or of the smallest step."""
    weight = size * torch.randn(5, 16, generator=torch.Generator().manual_seed(seed))
    q, scale = quantise(weight, scheme)
    moved = (weight - q.float() * scale).abs()
    bound = scale / 2 if scheme == "int8" else torch.maximum(weight.abs() / 16, scale * 2**-10)
    assert (moved <= bound * 1.001).all()


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_vllm_reads_the_section_as_eight_bits_by_channel_and_by_token(scheme):
    arguments = pytest.importorskip("compressed_tensors.quantization").QuantizationArgs
    said = quantization_config(scheme, ["lm_head"])
    group = said["config_groups"]["group_0"]
    weights, inputs = (arguments.model_validate(group[key]) for key in ("weights", "input_activations"))
    assert (weights.strategy, weights.symmetric, weights.dynamic) == ("channel", True, False)
    assert (inputs.strategy, inputs.dynamic, inputs.num_bits) == ("token", True, 8)
    assert (weights.type, said["format"]) == (SCHEMES[scheme].type, SCHEMES[scheme].format)
