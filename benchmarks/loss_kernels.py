"""Our losses through the output head, in chunks, against eager ones: time, peak memory, and how both grow.

    python -m benchmarks.loss_kernels [--loss kl_div] [--blocks 128] [--block 8] [--vocabulary 4096] [--repeats 5]

Both get the same rows in bfloat16, as training hands them over, and give the loss and the gradient by the rows; the
head is frozen. Eager is what one writes first: logits of all rows, softmax, elementwise loss, autograd. Blocks stand at
neighbouring tokens, so that most of their targets are common. The sides take turns; a time is the median of the
repeats, the memory what a pass adds to the program.
Exit code 1 when our memory grows by more than a quarter as the vocabulary grows four times, or the sides disagree.
"""

import argparse
import ctypes
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from algorithms.features import Teacher
from algorithms.losses import Targets, head_loss
from harness.errors import run_command
from harness.files import write_json
from harness.memory import forget_peak_memory, memory_bytes, peak_memory_bytes
from harness.training.loop import M_MMAP_THRESHOLD

GROWTH_MAX = 1.25
ERROR_MAX = 0.02  # both sides round to bfloat16, in another order


@dataclass(frozen=True)
class Case:
    """Sizes: blocks at as many tokens, rows of a block, draft vocabulary, width."""

    blocks: int
    block: int
    vocabulary: int
    width: int


@dataclass(frozen=True)
class Inputs:
    """What both sides read. R = rows, P = target positions, D = draft vocabulary, W = width."""

    hidden_RW: Tensor
    head_DW: Tensor
    targets: Targets
    target_R: Tensor
    weight_R: Tensor

    @classmethod
    def of(cls, case: Case) -> "Inputs":
        """Random numbers with logits a few units wide."""
        draw = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw)

        rows, positions = case.blocks * case.block, case.blocks + case.block - 1
        head_DW, theirs_DW = ((2 * random(case.vocabulary, case.width) / case.width**0.5).bfloat16() for _ in range(2))
        teacher = Teacher(theirs_DW, torch.ones(case.width, dtype=torch.bfloat16), 1e-5)
        target_R = (torch.arange(case.blocks)[:, None] + torch.arange(case.block)).flatten()
        hidden_RW = random(rows, case.width).bfloat16().requires_grad_()
        targets = Targets(teacher, random(positions, case.width).bfloat16())
        return cls(hidden_RW, head_DW, targets, target_R, torch.full((rows,), 1 / rows))


def chunked(inputs: Inputs, loss: str) -> Tensor:
    """Ours."""
    parts = [(inputs.hidden_RW, inputs.head_DW)]
    return head_loss(parts, inputs.targets, inputs.target_R, inputs.weight_R, {loss: 1.0}).loss


# From log-probabilities of the verifier and of the draft, [R, D] each, to the loss of each row.
EAGER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl_div": lambda p, q: F.kl_div(q, p, reduction="none", log_target=True).sum(-1),
    "ce": lambda p, q: F.nll_loss(q, p.argmax(-1), reduction="none"),
    "tv": lambda p, q: 1 - torch.minimum(p.exp(), q.exp()).sum(-1),
}


def eager(inputs: Inputs, loss: str) -> Tensor:
    """All rows at once."""
    with torch.no_grad():
        p_RD = inputs.targets.teacher.log_probabilities(inputs.targets.state_PH)[inputs.target_R]
    q_RD = (inputs.hidden_RW @ inputs.head_DW.T).float().log_softmax(-1)
    return (EAGER[loss](p_RD, q_RD) * inputs.weight_R).sum()


SIDES = {"chunked": chunked, "eager": eager}


class Gradient(NamedTuple):
    """What one pass gives."""

    loss: float
    by_rows_RW: Tensor


def _pass(side: str, inputs: Inputs, loss: str) -> Gradient:
    inputs.hidden_RW.grad = None
    value = SIDES[side](inputs, loss)
    value.backward()
    return Gradient(value.item(), inputs.hidden_RW.grad.float())


def _seconds(side: str, inputs: Inputs, loss: str) -> float:
    started = time.perf_counter()
    _pass(side, inputs, loss)
    return time.perf_counter() - started


def _memory_bytes(side: str, inputs: Inputs, loss: str) -> int:
    ctypes.CDLL(None).malloc_trim(0)
    forget_peak_memory()
    before = memory_bytes()
    _pass(side, inputs, loss)
    return peak_memory_bytes() - before


def _map_blocks_from(size: int) -> None:
    """Let glibc map every block of `size` bytes or more by itself, and hand it back when it is freed."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, size)


def compare(case: Case, loss: str, repeats: int) -> dict[str, Any]:
    """Both sides of one case by turns.

    Returns:
        `seconds` and `memory_bytes` of each side, their ratios, and `disagreement`: the larger of the relative
        differences of the losses and of the gradients.
    """
    inputs = Inputs.of(case)
    ours, theirs = (_pass(side, inputs, loss) for side in SIDES)
    _map_blocks_from(1 << 16)  # so that the memory of the program is what its tensors take
    memory = {side: _memory_bytes(side, inputs, loss) for side in SIDES}
    _map_blocks_from(1 << 25)
    passes = [{side: _seconds(side, inputs, loss) for side in SIDES} for _ in range(repeats + 1)][1:]
    found: dict[str, Any] = {"case": asdict(case)}
    for side in SIDES:
        found[side] = {"seconds": median(each[side] for each in passes), "memory_bytes": memory[side]}
    apart = (ours.by_rows_RW - theirs.by_rows_RW).norm() / theirs.by_rows_RW.norm()
    return found | {
        "eager_seconds_per_chunked": found["eager"]["seconds"] / found["chunked"]["seconds"],
        "eager_memory_per_chunked": memory["eager"] / memory["chunked"],
        "disagreement": max(abs(ours.loss / theirs.loss - 1), apart.item()),
    }


def cases(base: Case) -> dict[str, Case]:
    """The base and each size grown alone."""
    return {
        "base": base,
        "tokens x4": replace(base, blocks=4 * base.blocks),
        "vocabulary x4": replace(base, vocabulary=4 * base.vocabulary),
        "block x2": replace(base, block=2 * base.block),
    }


def _row(name: str, found: dict[str, Any], base: dict[str, Any]) -> str:
    cells = [f"{name:14}"]
    for key, unit, ratio in (
        ("seconds", 1e-3, "eager_seconds_per_chunked"),
        ("memory_bytes", 2**20, "eager_memory_per_chunked"),
    ):
        sides = [found[side][key] for side in SIDES]
        growth = [value / base[side][key] for side, value in zip(SIDES, sides, strict=True)]
        cells.append("".join(f"{value / unit:9.1f}" for value in sides) + f"{found[ratio]:8.2f}")
        cells.append("".join(f"{value:8.2f}" for value in growth))
    return "".join(cells)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loss_kernels", description=__doc__.split("\n")[0])
    parser.add_argument("--loss", choices=EAGER, default="kl_div")
    parser.add_argument("--blocks", type=int, default=128, help="blocks of a pack, each at a token of its own")
    parser.add_argument("--block", type=int, default=8, help="scored rows of a block")
    parser.add_argument("--vocabulary", type=int, default=4096, help="of the draft")
    parser.add_argument("--width", type=int, default=576, help="of what the head reads")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the figures to this file as JSON")
    return parser.parse_args()


def main() -> int:
    """Measure, print a table, judge."""
    arguments = _arguments()
    base = Case(arguments.blocks, arguments.block, arguments.vocabulary, arguments.width)
    print(f"{'':14}{'ms':>18}{'':8}{'growth':>16}{'MiB':>18}{'':8}{'growth':>16}")
    print(f"{'case':14}" + 2 * f"{'chunked':>9}{'eager':>9}{'ratio':>8}{'chunked':>8}{'eager':>8}")
    found = {}
    for name, case in cases(base).items():
        found[name] = compare(case, arguments.loss, arguments.repeats)
        print(_row(name, found[name], found["base"]), flush=True)
    growth = found["vocabulary x4"]["chunked"]["memory_bytes"] / found["base"]["chunked"]["memory_bytes"]
    apart = max(each["disagreement"] for each in found.values())
    print(f"vocabulary x4: our memory x{growth:.2f}; largest disagreement {apart:.4f}")
    if arguments.out:
        from harness.provenance import collect

        settings = {key: str(value) for key, value in vars(arguments).items()}
        write_json(arguments.out, {"cases": found, "provenance": collect(settings, 0, "full")})
    return int(growth > GROWTH_MAX or apart > ERROR_MAX)


if __name__ == "__main__":
    run_command(main)
