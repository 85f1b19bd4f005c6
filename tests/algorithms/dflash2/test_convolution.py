"""The dynamic convolution against plain loops over the sum that contract 4.6 gives."""

import pytest
import torch

from algorithms.dflash2.convolution import READ, WRITTEN, GroupedDynamicConvolution

WIDTH, GROUP = 12, 4


def drawn(taps, seed=0):
    torch.manual_seed(seed)
    convolution = GroupedDynamicConvolution(WIDTH, taps, GROUP)
    with torch.no_grad():
        for parameter in convolution.parameters():
            parameter.normal_()
    return convolution


def by_loops(convolution, x, normed, side, taps):
    """y[p, c] = sum over taps t <= p of (base[side, t, c] + delta[p, side, t, c // gs]) * x[p - t, c], one by one."""
    base, projection = convolution.base_kernel, convolution.kernel_projection.weight
    out = torch.zeros_like(x)
    for block in range(x.shape[0]):
        for p in range(x.shape[1]):
            delta = (projection @ normed[block, p]).reshape(2, taps, WIDTH // GROUP)
            for c in range(WIDTH):
                for t in range(min(taps, p + 1)):
                    out[block, p, c] += (base[side, t, c] + delta[side, t, c // GROUP]) * x[block, p - t, c]
    return out


@pytest.mark.parametrize("side", [READ, WRITTEN])
@pytest.mark.parametrize(("taps", "rows"), [(1, 4), (2, 5), (3, 4), (4, 2), (2, 1)])
def test_it_is_the_sum_over_taps_of_its_own_block(taps, rows, side):
    convolution = drawn(taps)
    x, normed = torch.randn(3, rows, WIDTH), torch.randn(3, rows, WIDTH)
    got = convolution(x, convolution.kernels(normed), side)
    torch.testing.assert_close(got, by_loops(convolution, x, normed, side, taps), rtol=1e-5, atol=1e-5)


def test_an_untrained_one_changes_nothing():
    convolution = GroupedDynamicConvolution(WIDTH, 3, GROUP)
    x = torch.randn(2, 5, WIDTH)
    for side in (READ, WRITTEN):
        assert torch.equal(convolution(x, convolution.kernels(torch.randn(2, 5, WIDTH)), side), x)


def test_no_block_and_no_later_row_reaches_a_row():
    convolution = drawn(2)
    x = torch.randn(2, 5, WIDTH)
    whole = convolution(x, convolution.kernels(x), READ)
    changed = x.clone()
    changed[0] += 1.0
    changed[1, 3:] += 1.0
    again = convolution(changed, convolution.kernels(changed), READ)
    assert torch.equal(whole[1, :3], again[1, :3]) and not torch.equal(whole[1, 3], again[1, 3])


def test_sums_are_float32_under_a_reduced_dtype():
    convolution = drawn(2).bfloat16()
    x = torch.randn(2, 5, WIDTH).bfloat16()
    kernels = convolution.kernels(x)
    want = convolution.float()(x.float(), kernels.float(), READ).bfloat16()
    got = convolution.bfloat16()(x, kernels, READ)
    assert got.dtype == torch.bfloat16 and torch.equal(got, want)
