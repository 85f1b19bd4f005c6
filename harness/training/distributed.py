"""Several processes train one draft: each computes its share of every pack, and together they take the same steps.

`torchrun` starts the processes (`joined`), FSDP2 spreads weights, gradients and moments over them (`spread`), and the
sums of their shares are those of one process. Called by `python -m harness.training` and `loop`.
"""

import heapq
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from algorithms.contract import Batch, LossOutput
from algorithms.tables import is_table, mark_table
from harness.errors import USER_ERROR_EXIT_CODE, UserError
from harness.orphans import die_with_parent
from harness.progress import SILENT

Objective = Callable[[Batch], LossOutput]
CPU = torch.device("cpu")
# What torchrun tells each process, and what holds without it.
VARIABLES = (("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0"))


@dataclass(frozen=True)
class World:
    """The processes that train one draft together, and this one's place among them and on the machine."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    @property
    def device_text(self) -> str:
        """The device in words."""
        return "CPU" if self.device.type == "cpu" else torch.cuda.get_device_name(self.device)

    @property
    def peak_device_memory_bytes(self) -> int:
        """Largest memory of tensors on this process's GPU so far; 0 without one."""
        return 0 if self.device.type == "cpu" else torch.cuda.max_memory_allocated(self.device)

    def sum(self, values: Iterable[float]) -> list[float]:
        """Each value summed over all processes, which give equally many."""
        if self.size == 1:
            return list(values)
        together = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        dist.all_reduce(together)
        return together.tolist()

    def agree(self, answer: bool) -> bool:
        """The leader's answer."""
        return answer if self.size == 1 else bool(self.sum([float(answer and self.leads)])[0])

    def same(self, *values: int) -> bool:
        """Whether all processes gave the same numbers; each below 2^48."""
        return self.sum(values) == [self.size * value for value in values]

    def share(self, rows: Sequence[int], lengths: Sequence[int]) -> list[int] | None:
        """This process's documents of a pack, in the pack's order; None for all of them.

        The longest goes first, to whoever has least so far.
        """
        if self.size == 1:
            return None
        loads = [(0, rank) for rank in range(self.size)]
        mine = set()
        for row in sorted(rows, key=lambda row: -lengths[row]):
            load, rank = heapq.heappop(loads)
            if rank == self.rank:
                mine.add(row)
            heapq.heappush(loads, (load + lengths[row], rank))
        return [row for row in rows if row in mine]


ALONE = World()


@contextmanager
def joined() -> Iterator[World]:
    """The world that `torchrun` describes in the environment; without it, this process alone.

    Raises:
        UserError: more processes on this machine than it has GPUs.
    """
    size, rank, local_rank = (int(os.environ.get(name, least)) for name, least in VARIABLES)
    device = _device(local_rank)
    if size == 1:
        yield World(device=device)
        return
    die_with_parent()
    if rank:
        os.environ[SILENT] = "1"
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    try:
        yield World(rank, size, device)
    except UserError:
        if local_rank == 0:
            raise
        sys.exit(USER_ERROR_EXIT_CODE)  # one process of a machine says what all of them met
    # Not after an error: the others may wait for this process, and torchrun ends them when it ends.
    dist.destroy_process_group()


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return CPU
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise UserError(f"process {local_rank + 1} of this machine: there are {count} GPUs. Fix: start {count}")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


class _Step(nn.Module):
    """The objective as a module, so that FSDP gathers the whole draft before it and spreads the gradients after it."""

    def __init__(self, draft: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.draft, self.objective = draft, objective

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Loss and metrics of this process's share."""
        output = self.objective(batch)
        if batch.pack is None or batch.pack.counts:
            return output.loss, output.metrics
        return output.loss * 0, dict.fromkeys(output.metrics, 0.0)


def spread(draft: nn.Module, objective: Objective, world: World) -> Objective:
    """Spread the trained parameters over the processes, by rows; returns the objective that works with them.

    A draft is a few layers, so it is gathered at once, in float32: products are rounded as in one process, and what
    travels is little beside what a step computes. Gradients are summed in float32. Frozen parameters stay whole.
    """
    if world.size == 1:
        return objective
    # One process alone need not wait for these.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    tables = [name for name, parameter in draft.named_parameters() if is_table(parameter)]
    step: Any = _Step(draft, objective)
    fully_shard(
        step,
        mesh=init_device_mesh(world.device.type, (world.size,)),
        reshard_after_forward=False,
        mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32),
        ignored_params={parameter for parameter in draft.parameters() if not parameter.requires_grad},
    )
    step.set_gradient_divide_factor(1.0)  # a loss is divided by counts of the whole pack already
    step.set_force_sum_reduction_for_comms(True)  # the only one that gloo has
    for name in tables:
        mark_table(draft.get_parameter(name))
    return lambda batch: LossOutput(*step(batch))


def is_spread(tensor: Any) -> bool:
    """Whether each process holds some rows of it only: a `DTensor`."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Any) -> Tensor:
    """All rows of a tensor that may be spread; every process must ask."""
    return tensor.full_tensor() if is_spread(tensor) else tensor


def like(tensor: Tensor, other: Any) -> Tensor:
    """A tensor of which every process holds a copy, spread as `other` is; as it is where nothing is to be done."""
    if is_spread(tensor) or not is_spread(other):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


@contextmanager
def gathered(draft: nn.Module) -> Iterator[None]:
    """Within the block the draft's parameters are whole and plain, to draft with or to export; not to be trained."""
    spread_out = [
        (module, name, parameter)
        for module in draft.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if is_spread(parameter)
    ]
    for module, name, parameter in spread_out:
        setattr(module, name, nn.Parameter(whole(parameter.detach()), parameter.requires_grad))
    try:
        yield
    finally:
        for module, name, parameter in spread_out:
            setattr(module, name, parameter)


def clip(parameters: Sequence[nn.Parameter], largest: float) -> Tensor:
    """Scale all gradients so that their common norm is at most `largest`; returns the norm before."""
    norm = whole(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    nn.utils.clip_grads_with_norm_(parameters, largest, norm)
    return norm
