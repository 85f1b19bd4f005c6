"""Intervals for measured figures: proportions, pooled ratios over prompts, and paired comparisons of two variants.

Used by every check of `harness.evaluation` and by the reports. All intervals are two-sided and cover 95%.
Prompts are the unit that is resampled: the tokens of one reply depend on each other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE = 0.95
Z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A value with its 95% interval; `low` and `high` are None where fewer than 2 units leave it unknown.

    `n` counts the units (prompts, problems) that the value was computed from.
    """

    value: float
    low: float | None
    high: float | None
    n: int

    def as_dict(self) -> dict[str, float | int | None]:
        """The four fields as a JSON object."""
        return asdict(self)


def widened(interval: Interval, factor: float) -> Interval:
    """A ratio's interval, reaching further by `factor` on either side: what else may have changed by that much.

    Raises:
        ValueError: the factor is not positive.
    """
    if not factor > 0:
        raise ValueError(f"widened by a factor of {factor}: it must be positive")
    wide = max(factor, 1 / factor)
    low, high = interval.low, interval.high
    return replace(interval, low=None if low is None else low / wide, high=None if high is None else high * wide)


def farthest_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """Of all ratios of a time in `second` to one in `first`, the one that is farthest from 1, by factor."""
    ratios = [after / before for before in first for after in second]
    return max(ratios, key=lambda ratio: max(ratio, 1 / ratio))


def proportion(successes: int, n: int) -> Interval:
    """Share of successes with Wilson's score interval.

    Raises:
        ValueError: `n` is 0, or `successes` lies outside 0..n.
    """
    found = stats.binomtest(successes, n).proportion_ci(CONFIDENCE, method="wilson") if n else None
    if found is None:
        raise ValueError("proportion of 0 trials: n must be 1 or more")
    return Interval(successes / n, float(found.low), float(found.high), n)


def _tail(n: int) -> float:
    """Share of draws to leave out at each end, for `n` units.

    Percentiles alone cover too seldom when units are few: resamples vary by (n-1)/n of what samples vary, and the
    normal tail forgets that the spread itself is estimated. Both are made up for as Hesterberg does ("What Teachers
    Should Know About the Bootstrap", 2015, section 5.3: the expanded percentile interval).
    """
    return float(stats.norm.cdf(stats.t.ppf((1 - CONFIDENCE) / 2, n - 1) * (n / (n - 1)) ** 0.5))


def _bootstrap(samples: Sequence[Floats], statistic: Callable[..., Floats], resamples: int, seed: int) -> Interval:
    """Percentile bootstrap of `statistic(*samples)` over positions; resamples that are not finite are left out."""
    value, n = float(statistic(*samples, axis=-1)), len(samples[0])
    if n < 2:
        return Interval(value, None, None, n)
    drawn = np.random.default_rng(seed).integers(0, n, (resamples, n))
    values = statistic(*(sample[drawn] for sample in samples), axis=-1)
    kept = values[np.isfinite(values)]
    low, high = np.quantile(kept, [_tail(n), 1 - _tail(n)])
    return Interval(value, float(low), float(high), n)


def _ratio(numerators: Floats, denominators: Floats, axis: int = -1) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sum(numerators, axis=axis) / np.sum(denominators, axis=axis)


def pooled_ratio(
    numerators: Sequence[float], denominators: Sequence[float], resamples: int, seed: int, offset: float = 0.0
) -> Interval:
    """`offset` + sum of numerators / sum of denominators, with a bootstrap interval over prompts.

    Pooled: a prompt counts by its denominator. Not the mean of the prompts' own ratios.

    Args:
        numerators: one figure per prompt, [N].
        denominators: one figure per prompt, [N], none negative.
        resamples: number of bootstrap draws.
        seed: makes the draws repeatable.
        offset: added to the ratio; 1 for the bonus token of an acceptance length.

    Raises:
        ValueError: lengths differ, or the denominators sum to 0.
    """
    top, bottom = np.asarray(numerators, float), np.asarray(denominators, float)
    if top.shape != bottom.shape or not bottom.sum() > 0:
        raise ValueError(
            f"pooled ratio of {len(top)} numerators and {len(bottom)} denominators with sum {bottom.sum()}"
        )
    found = _bootstrap((top, bottom), _ratio, resamples, seed)
    low, high = (None if bound is None else bound + offset for bound in (found.low, found.high))
    return Interval(found.value + offset, low, high, found.n)


def pooled_gap(
    first: tuple[Sequence[float], Sequence[float]],
    second: tuple[Sequence[float], Sequence[float]],
    resamples: int,
    seed: int,
) -> Interval:
    """Pooled ratio of `first` minus pooled ratio of `second`, each (numerators, denominators) of the same prompts.

    Prompts are resampled for both at once, so that what a prompt does to both sides cancels.
    """

    def gap(*sums: Floats, axis: int = -1) -> Floats:
        return _ratio(sums[0], sums[1], axis) - _ratio(sums[2], sums[3], axis)

    return _bootstrap([np.asarray(part, float) for part in (*first, *second)], gap, resamples, seed)


def paired_difference(base: Mapping[str, float], variant: Mapping[str, float]) -> Interval:
    """Mean score of `variant` minus mean score of `base` over the problems that both have, scores 0 or 1.

    The interval is Agresti and Min's for matched pairs (Statistics in Medicine 24, 2005: a Wald interval after half a
    problem is added to each cell of the 2x2 table). Unlike a bootstrap it has a width when no problem differs.

    Raises:
        ValueError: no problem in common, or a score other than 0 and 1.
    """
    common = sorted(base.keys() & variant.keys())
    pairs = [(base[key], variant[key]) for key in common]
    if not pairs or any(score not in (0, 1) for pair in pairs for score in pair):
        raise ValueError(f"paired difference of {len(pairs)} common problems: it takes 1 or more, scored 0 or 1")
    won, lost, n = pairs.count((0, 1)), pairs.count((1, 0)), len(pairs)
    centre = (won - lost) / (n + 2)
    half = Z * ((won + lost + 1) / (n + 2) - centre**2) ** 0.5 / (n + 2) ** 0.5
    return Interval((won - lost) / n, max(centre - half, -1.0), min(centre + half, 1.0), n)


def paired_ratio(
    base: Sequence[Mapping[str, float]], variant: Sequence[Mapping[str, float]], resamples: int = 2000, seed: int = 0
) -> Interval:
    """Tokens per second of `variant` over those of `base`: the speed-up, paired by prompt.

    Args:
        base: records with `id`, `output_tokens` and `latency_s`, as latency.json keeps them.
        variant: the same of the other variant; ids that only one side has are left out.
        resamples: number of bootstrap draws over prompts.
        seed: makes the draws repeatable.

    Raises:
        ValueError: no prompt in common.
    """
    by_id = {record["id"]: record for record in base}
    pairs = [(by_id[record["id"]], record) for record in variant if record["id"] in by_id]
    if not pairs:
        raise ValueError("paired ratio: the two runs have no prompt in common")
    columns = [
        np.asarray([pair[side][key] for pair in pairs], float)
        for side in (1, 0)
        for key in ("output_tokens", "latency_s")
    ]

    def speedup(*sums: Floats, axis: int = -1) -> Floats:
        return _ratio(sums[0], sums[1], axis) / _ratio(sums[2], sums[3], axis)

    return _bootstrap(columns, speedup, resamples, seed)
