"""Whether the machine was ours alone, and as fast as before, while something was timed. Called by `latency`.

Two variants are timed minutes apart. What the machine itself did in between shows in a fixed piece of work, timed
before and after each load (`kernel_ms`): the reports widen a speed-up by the farthest ratio of these times, and say
"not comparable" beyond a limit. On a GPU machine that speaks for the processor that feeds the GPU, not for the GPU.

What other programs took is the time in which the cores worked, less that of this process and all its children
(`others_cpu_share`); the server and the load generator are children.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

KERNEL_S = 0.5
MATRIX = (4096, 8192)  # 128 MiB in float32: more than a cache holds, as the weights that decoding reads
PRODUCT = 512


@dataclass(frozen=True)
class CpuTimes:
    """Seconds of all cores that this process may use, up to one moment."""

    there_were: float
    worked: float
    ours: float


def cpu_times() -> CpuTimes:
    """The counters now. Cores that this process may not use count nowhere."""
    per_core = psutil.cpu_times(percpu=True)
    usable = [per_core[core] for core in os.sched_getaffinity(0) if core < len(per_core)]
    # `user` and `nice` hold `guest` and `guest_nice` already.
    there_were = sum(sum(core) - getattr(core, "guest", 0) - getattr(core, "guest_nice", 0) for core in usable)
    idle = sum(core.idle + getattr(core, "iowait", 0) for core in usable)
    return CpuTimes(there_were, there_were - idle, _our_seconds())


def _our_seconds() -> float:
    """CPU seconds of this process, its living descendants, and those of them that ended and were waited for."""
    here, seconds = psutil.Process(), 0.0
    for process in (here, *here.children(recursive=True)):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            spent = process.cpu_times()
            seconds += spent.user + spent.system + spent.children_user + spent.children_system
    return seconds


def others_cpu_share(before: CpuTimes, after: CpuTimes) -> float:
    """Share of all cores' time that went to programs that are not ours, 0 to 1; 0 where no time passed."""
    there_were = after.there_were - before.there_were
    others = (after.worked - before.worked) - (after.ours - before.ours)
    return min(max(others / there_were, 0.0), 1.0) if there_were > 0 else 0.0


def kernel_ms(seconds: float = KERNEL_S) -> float:
    """Median time of one pass over a matrix and one product of two, on all cores: what decoding does, in small."""
    generator = np.random.default_rng(0)
    matrix = np.ones(MATRIX, np.float32)
    vector, square = np.ones(MATRIX[1], np.float32), generator.random((PRODUCT, PRODUCT), np.float32)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        started = time.perf_counter()
        matrix @ vector
        square @ square
        times.append(time.perf_counter() - started)
    return float(np.median(times)) * 1000


@contextmanager
def watched(found: dict[str, Any]) -> Iterator[None]:
    """Put into `found`, once the block has ended, `kernel_ms` before and after it, and `others_cpu_share` within."""
    kernel_before, before = kernel_ms(), cpu_times()
    yield
    share = others_cpu_share(before, cpu_times())
    found |= {
        "kernel_ms": {"before": round(kernel_before, 3), "after": round(kernel_ms(), 3)},
        "others_cpu_share": round(share, 4),
    }
