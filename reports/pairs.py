"""Two variants timed on the same prompts, as one ratio. Called by `reports.rows` for speed-ups and drafts in pairs.

Overlapping ratios to the base would be a poor test of one draft against another: both hold the base's own noise. The
direct ratio holds what the two did on the same prompts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from harness.evaluation.statistics import Interval, farthest_ratio, paired_ratio, widened
from harness.sections.evaluate import Evaluate
from reports.collect import BASE, Run
from reports.formats import Load


@dataclass(frozen=True)
class Pair:
    """Tokens per second of `faster` over those of `slower` at a concurrency, `drift` their machine's."""

    level: str
    faster: str
    slower: str
    ratio: Interval
    drift: float | None


def drift(base: Load, load: Load) -> float | None:
    """How much slower the machine itself was beside `load`; None where nobody looked."""
    if base.machine is None or load.machine is None:
        return None
    times, base_times = load.machine.kernel_ms, base.machine.kernel_ms
    return (times.before + times.after) / (base_times.before + base_times.after)


def against(base: Load, load: Load, evaluate: Evaluate) -> Interval | None:
    """Tokens per second of `load` over those of `base`, paired by prompt; None without a request in common.

    The interval is widened by what the machine may have changed between the two loads.
    """
    before, after = ([record.model_dump() for record in part.records] for part in (base, load))
    if not {record["id"] for record in before} & {record["id"] for record in after}:
        return None
    ratio = paired_ratio(before, after, evaluate.bootstrap_resamples, evaluate.seed)
    if base.machine is None or load.machine is None:
        return ratio
    times = [(part.machine.kernel_ms.before, part.machine.kernel_ms.after) for part in (base, load) if part.machine]
    return widened(ratio, farthest_ratio(times[0], times[1]))


def pairs(run: Run) -> Iterator[Pair]:
    """Every two speculating variants at every concurrency that both were timed at, the faster one first."""
    for level in run.latency[BASE].concurrency:
        found = {variant: run.latency[variant].concurrency.get(level) for variant in run.drafted}
        timed = {variant: load for variant, load in found.items() if load is not None and not load.invalid}
        for names in combinations(timed, 2):
            for slower, faster in (names, names[::-1]):
                ratio = against(timed[slower], timed[faster], run.reproduction.evaluate)
                if ratio is not None and ratio.value >= 1:
                    yield Pair(level, faster, slower, ratio, drift(timed[slower], timed[faster]))
                    break
