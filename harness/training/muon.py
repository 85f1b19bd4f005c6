"""Muon for a draft that is spread over several processes: each makes some of the matrices' updates orthogonal.

Used by `optimizers`; where one process trains, `newton_schulz.Muon` does. All processes call the same functions here in
the same order. Making an update orthogonal takes the whole matrix and most of the time, so matrices are dealt out.
"""

import heapq
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.training import newton_schulz
from harness.training.newton_schulz import length, orthogonal


class SpreadMuon(newton_schulz.Muon):
    """`newton_schulz.Muon` over matrices whose rows are spread, and so are the momenta."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every matrix that has a gradient."""
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            owners = _deal([matrix.shape for matrix in matrices], dist.get_world_size())
            # Rounded before they travel: it is the first thing that `orthogonal` does, and halves the way.
            spread: list[Any] = [self._update(matrix, group) for matrix in matrices]
            updates = [update.to_local().to(newton_schulz.ROUNDED) for update in spread]
            mine = [_collect(update, len(m), owner) for update, m, owner in zip(updates, matrices, owners, strict=True)]
            moves = [None if update is None else orthogonal(update, group) for update in mine]
            for matrix, update, move, owner in zip(matrices, updates, moves, owners, strict=True):
                rows = matrix.to_local().mul_(1 - group["lr"] * group["weight_decay"])
                rows.add_(_distribute(move, update, len(matrix), owner), alpha=-length(matrix, group))


def _deal(shapes: Sequence[Sequence[int]], size: int) -> list[int]:
    """Which process makes which matrix orthogonal: the dearest first to whoever has least so far."""
    loads = [(0, rank) for rank in range(size)]
    owners = [0] * len(shapes)
    costs = [min(shape) ** 2 * max(shape) for shape in shapes]
    for index in sorted(range(len(shapes)), key=lambda index: -costs[index]):
        load, owners[index] = heapq.heappop(loads)
        heapq.heappush(loads, (load + costs[index], owners[index]))
    return owners


def _padded(rows: Tensor, count: int) -> Tensor:
    return torch.cat((rows, rows.new_zeros(count - len(rows), *rows.shape[1:])))


def _collect(local: Tensor, rows: int, owner: int) -> Tensor | None:
    """The matrix of `rows` rows whose chunk each process gives; None where this process is not the owner."""
    mine = _padded(local, -(-rows // dist.get_world_size()))
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())] if dist.get_rank() == owner else None
    dist.gather(mine, parts, dst=owner)
    return torch.cat(parts)[:rows] if parts else None


def _distribute(matrix: Tensor | None, local: Tensor, rows: int, owner: int) -> Tensor:
    """This process's chunk of the owner's matrix."""
    chunk = -(-rows // dist.get_world_size())
    mine = local.new_empty(chunk, *local.shape[1:])
    parts = None if matrix is None else list(_padded(matrix, chunk * dist.get_world_size()).split(chunk))
    dist.scatter(mine, parts, src=owner)
    return mine[: len(local)]
