"""Tensors by their headers: rows are read when they are asked for, and all of them exactly once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from harness.checkpoint import stored


@pytest.fixture
def file(tmp_path):
    tensors = {
        "table": torch.arange(12.0).reshape(4, 3).to(torch.bfloat16),
        "line": torch.arange(5),
        "number": torch.tensor(7.0),
        "nothing": torch.zeros(0, 3),
        "flags": torch.tensor([True, False]),
    }
    save_file(tensors, tmp_path / "some.safetensors")
    return tensors, safe_open(tmp_path / "some.safetensors", framework="pt")


def test_shape_dtype_and_values_are_those_of_the_file(file):
    tensors, opened = file
    for name, tensor in tensors.items():
        found = stored.Stored(opened, name)
        assert (tuple(found.shape), found.dtype) == (tuple(tensor.shape), tensor.dtype)
        assert stored.values_of(found) == tensor.numel()
        assert torch.equal(found[:], tensor)


def test_a_slice_is_those_rows(file):
    tensors, opened = file
    assert torch.equal(stored.Stored(opened, "table")[1:3], tensors["table"][1:3])


@given(st.integers(0, 50), st.integers(1, 7), st.integers(1, 40))
def test_the_blocks_of_a_whole_tensor_are_its_rows_in_order(rows, width, size):
    tensor = torch.zeros(rows, width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "BLOCK_VALUES", size)
        spans = list(stored.blocks(tensor))
    assert [row for span in spans for row in range(span.start, span.stop)] == list(range(rows))
    assert all((span.stop - span.start) * width <= max(size, width) for span in spans)


@given(st.integers(1, 400), st.floats(0.001, 0.999))
def test_a_part_of_a_large_tensor_is_spread_over_it_and_not_more_than_asked(rows, share):
    tensor = torch.zeros(rows, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "ALWAYS_READ", 0)
        spans = list(stored.blocks(tensor, share))
    read = [row for span in spans for row in range(span.start, span.stop)]
    assert 1 <= len(read) <= share * rows + 1 and len(set(read)) == len(read)
    assert all(0 <= row < rows for row in read)
    if len(spans) > 1:
        assert spans[0].start == 0 and spans[-1].stop == rows


def test_a_small_tensor_is_read_whole_however_little_is_asked():
    assert list(stored.blocks(torch.zeros(10), 0.01)) == [slice(0, 10)]
