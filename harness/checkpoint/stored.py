"""Tensors of safetensors files by their headers: shape and dtype at once, values when a rule asks for some.

Made by `reading`; the rules take these and tensors in memory alike.
"""

from collections.abc import Iterator, Sequence
from math import ceil, prod
from typing import Any, Protocol

import torch
from torch import Tensor

BLOCK_VALUES = 1 << 22  # held in memory at a time
ALWAYS_READ = 1 << 16  # values of a tensor that is read whole however large the others are
GROUPS = 4
DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "BOOL": torch.bool,
}


class Readable(Protocol):
    """What the rules need of a tensor: a `Tensor`, or a `Stored` one."""

    @property
    def shape(self) -> Sequence[int]:
        """Sizes."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the file."""

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Some rows, in memory."""


class Stored:
    """A tensor of an open safetensors file; slicing it reads those rows and no others."""

    def __init__(self, file: Any, name: str) -> None:
        piece = file.get_slice(name)
        self._file, self._name = file, name
        self.shape: Sequence[int] = tuple(piece.get_shape())
        # Kinds that are not listed are rare enough to look at a value.
        self.dtype: torch.dtype = DTYPES.get(piece.get_dtype()) or self[:1].dtype

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Some rows, in memory; all of a single number."""
        return self._file.get_slice(self._name)[rows] if self.shape else self._file.get_tensor(self._name)


def values_of(tensor: Readable) -> int:
    """Number of values."""
    return prod(tensor.shape)


def blocks(tensor: Readable, share: float = 1.0) -> Iterator[slice]:
    """All rows of a tensor, some at a time; with a smaller `share` of a large one, a few groups spread over it."""
    if not values_of(tensor) or not tensor.shape:
        return
    rows, values = tensor.shape[0], values_of(tensor)
    if share < 1 and values > ALWAYS_READ:
        taken = ceil(rows * share)
        groups = min(GROUPS, taken)
        height, last = taken // groups, max(groups - 1, 1)
        starts = [number * (rows - height) // last for number in range(groups)]
    else:
        height = max(1, BLOCK_VALUES * rows // values)
        starts = list(range(0, rows, height))
    for start in starts:
        yield slice(start, min(start + height, rows))
