"""The rules of `algorithms.attention` for flex attention, which skips blocks of keys that no row of a block sees.

For GPUs, where a padded score for every pair of rows would be the largest tensor; on a CPU it has no backward pass.
Queries and keys are packed: first the context of all documents, then the rows' own keys. Called by `attention`.

Shape letters: S = context rows, R = query rows (of blocks: anchors), Q = queries, K = keys, N = query heads,
G = key-value heads, D = head size.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask as Mask
else:
    Mask = Any  # its module is slow to import, and most runs need none

Side = tuple[Tensor, Tensor]  # document and position of each row


def branch_mask(context: Side, queries: Side, step: int, window: int | None) -> Mask:
    """Rows whose branch holds `step` keys each, all rows' first keys, then all second ones: see `attention.visible`."""
    (document_S, position_S), (document_R, position_R) = context, queries
    slots, rows = document_S.numel(), document_R.numel()
    reach = slots + rows * (step + 1) if window is None else window

    def sees(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        slot, own = key.clamp(max=slots - 1), key - slots
        away = position_R[query] - position_S[slot]
        true = (document_R[query] == document_S[slot]) & (away >= 0) & (away + step < reach)
        # Of a branch longer than the window the oldest keys are out of sight.
        return torch.where(own < 0, true, (own % rows == query) & (step - own // rows <= reach))

    return _mask(sees, rows, slots + rows * step, document_S.device)


def blocks_mask(context: Side, anchors: Side, size: int, causal: bool, window: int | None, first: int = 0) -> Mask:
    """Blocks of `size` rows, each with its own keys, whose rows from `first` on ask: see `attention.blocks_see`."""
    (document_S, position_S), (document_R, position_R) = context, anchors
    slots, blocks, asking = document_S.numel(), document_R.numel(), size - first
    reach = slots + size if window is None else window

    def sees(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        slot, own = key.clamp(max=slots - 1), key - slots
        block, row = query // asking, first + query % asking
        away = position_R[block] - position_S[slot]
        true = (document_R[block] == document_S[slot]) & (away > 0) & (away + row < reach)
        inside = row - own % size
        mine = (own // size == block) & (inside.abs() < reach)
        return torch.where(own < 0, true, mine & (inside >= 0) if causal else mine)

    return _mask(sees, blocks * asking, slots + blocks * size, document_S.device)


def attend(query_QND: Tensor, key_KGD: Tensor, value_KGD: Tensor, mask: Mask) -> Tensor:
    """[Q, N * D] in the query's dtype; the softmax is float32."""
    query, key, value = (x.transpose(0, 1)[None] for x in (query_QND, key_KGD, value_KGD))
    mixed = _compiled("flex_attention", query.device.type)(query, key, value, block_mask=mask, enable_gqa=True)
    return mixed[0].transpose(0, 1).flatten(1)


def _mask(sees: Any, queries: int, keys: int, device: torch.device) -> Mask:
    return _compiled("create_block_mask", device.type)(sees, None, None, queries, keys, device)


@cache
def _compiled(name: str, device: str) -> Any:
    """Of PyTorch's module, compiled where it is meant to be fast: uncompiled, every pair of rows is computed."""
    from torch.nn.attention import flex_attention as module

    function = getattr(module, name)
    return function if device == "cpu" else torch.compile(function, dynamic=True)
