"""Intervals of a change between two runs on the same prompts: the gate and `reports.environments` judge by them.

Called by `reports.gate_verdicts` and `reports.environments`. A prompt is the unit, and each is its own control: greedy
replies of one draft to one prompt are almost the same in both runs, so the difference by prompt has far less noise than
the two pooled figures have.

Most prompts of a small run do not change at all, and the others change unequally. Neither a bootstrap over 16 prompts
(too narrow, and too coarse in the tails that many verdicts at once demand) nor Student's interval (which takes the
unequal loss for noise) suits that. Acceptance therefore has Hartigan's typical values: the change in random subsets of
the prompts, each in with chance 1/2. Their quantiles are the bounds that belong to the test which swaps before and
after at random, prompt by prompt; both are exact at any number of prompts, given that without a true change each prompt
is as likely to gain as to lose (Hartigan, Journal of the American Statistical Association 64, 1969). Times differ in
every request: they have Student's interval over the requests' contributions.

Shape letters: N = prompts, R = subsets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
TAIL_SUBSETS = 5  # so many lie beyond each bound
SUBSETS_MIN = 4000
SEED = 0
SIGNS = (1, -1, -1, 1)  # tokens over seconds of the variant, over the same of the base


@dataclass(frozen=True)
class Change:
    """A figure before and after, their difference with its interval, and the prompts that both had.

    `low` and `high` bound `change`; None where the prompts are too few to bound it with that confidence.
    """

    before: float
    after: float
    change: float
    low: float | None
    high: float | None
    n: int


@lru_cache(maxsize=8)
def _subsets(prompts: int, count: int) -> NDArray[np.float32]:
    """Random subsets of the prompts as rows of 0 and 1, [R, N]; the same for every call."""
    return np.random.default_rng(SEED).integers(0, 2, (count, prompts)).astype(np.float32)


def _known(bound: float) -> float | None:
    return float(bound) if np.isfinite(bound) else None


def ratio_change(
    before: tuple[Sequence[float], Sequence[float]], after: tuple[Sequence[float], Sequence[float]], confidence: float
) -> Change:
    """Change of a ratio of sums, such as accepted drafts / verify steps.

    Args:
        before: numerators and denominators of the first run, [N] each.
        after: the same of the second run, for the same prompts in the same order.
        confidence: share of such intervals that hold the true change, such as 0.95.

    Raises:
        ValueError: no prompt, or denominators that sum to 0.
    """
    columns = np.array([*before, *after], dtype=np.float32).T
    old_top, old_bottom, new_top, new_bottom = columns.sum(axis=0, dtype=float)
    if not old_bottom > 0 or not new_bottom > 0:
        raise ValueError(f"ratio of {len(columns)} prompts: the denominators must sum to more than 0")
    old, new = old_top / old_bottom, new_top / new_bottom
    if (columns[:, :2] == columns[:, 2:]).all():
        return Change(old, new, 0.0, 0.0, 0.0, len(columns))
    tail = (1 - confidence) / 2
    sums = _subsets(len(columns), max(SUBSETS_MIN, int(TAIL_SUBSETS / tail))) @ columns
    with np.errstate(divide="ignore", invalid="ignore"):
        changes = sums[:, 2] / sums[:, 3] - sums[:, 0] / sums[:, 1]
    # A subset without a step says nothing: it may lie on either side.
    low = np.quantile(np.where(np.isnan(changes), -np.inf, changes), tail, method="lower")
    high = np.quantile(np.where(np.isnan(changes), np.inf, changes), 1 - tail, method="higher")
    return Change(old, new, new - old, _known(low), _known(high), len(columns))


def speedup_change(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], confidence: float) -> Change:
    """Relative change of a speed-up: tokens/s of a variant over tokens/s of the base, in a second run over a first.

    Args:
        before: tokens and seconds of the variant, then of the base, in the first run; four times [N].
        after: the same of the second run.
        confidence: see `ratio_change`.

    Returns:
        `before` and `after` are the speed-ups; `change`, `low` and `high` are relative (-0.1: a tenth slower).
    """

    def log_speedup(columns: Sequence[Sequence[float]]) -> tuple[float, Floats]:
        shares = [np.asarray(column, float) for column in columns]
        value = sum(sign * np.log(column.sum()) for sign, column in zip(SIGNS, shares, strict=True))
        pulls = [sign * column / column.mean() for sign, column in zip(SIGNS, shares, strict=True)]
        return float(value), np.sum(pulls, axis=0)

    (old, old_pulls_N), (new, new_pulls_N) = log_speedup(before), log_speedup(after)
    change, n = new - old, len(before[0])
    bounds: list[float | None] = [None, None]
    if n > 1:
        half = stats.t.ppf((1 + confidence) / 2, n - 1) * (new_pulls_N - old_pulls_N).std(ddof=1) / n**0.5
        bounds = [float(np.expm1(change - half)), float(np.expm1(change + half))]
    return Change(float(np.exp(old)), float(np.exp(new)), float(np.expm1(change)), bounds[0], bounds[1], n)


def share_change(before: Mapping[str, int], after: Mapping[str, int], confidence: float) -> Change:
    """Change of a share of right answers over the problems that both runs have, scores 0 or 1.

    The interval is Agresti and Min's for matched pairs, as in `harness.evaluation.statistics.paired_difference`.

    Raises:
        ValueError: no problem in common.
    """
    common = sorted(before.keys() & after.keys())
    if not common:
        raise ValueError("share of 0 problems: the two runs have none in common")
    pairs, n = [(before[key], after[key]) for key in common], len(common)
    won, lost = pairs.count((0, 1)), pairs.count((1, 0))
    centre, z = (won - lost) / (n + 2), float(stats.norm.ppf((1 + confidence) / 2))
    half = z * (((won + lost + 1) / (n + 2) - centre**2) / (n + 2)) ** 0.5
    old, new = (sum(pair[side] for pair in pairs) / n for side in (0, 1))
    return Change(old, new, new - old, max(centre - half, -1.0), min(centre + half, 1.0), n)
