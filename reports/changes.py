"""How far one result table lies from another, figure by figure, with an interval and a verdict.

Called by `reports.compare`. The tables come from separate runs, so that their intervals are taken as independent; where
both runs answered the same prompts this is wider than a paired comparison, never narrower.
"""

import math
from dataclasses import dataclass

from reports.names import scale_label
from reports.rows import Row
from reports.wording import described, signed

SPEED_UNITS = ("tokens/s", "ms", "s", "ratio")
RELATIVE_UNITS = (*SPEED_UNITS, "bytes")
BETTER, WORSE, APART, TOGETHER = "better", "worse", "differs", "not told apart"
NO_INTERVAL = "no interval"


@dataclass(frozen=True)
class Change:
    """From one figure to another. `is_relative`: value and bounds are ratios less 1, else differences in the unit.

    `verdict` is one of the words above, or `not judged: <why>`.
    """

    value: float
    low: float | None
    high: float | None
    is_relative: bool
    verdict: str


def difference(a: Row, b: Row) -> tuple[float, float | None, float | None]:
    """`b` less `a` with the interval that follows from theirs (Zou and Donner 2008, for independent estimates)."""
    value = b.value - a.value
    if None in (a.low, a.high, b.low, b.high):
        return value, None, None
    down = math.hypot(b.value - b.low, a.high - a.value)
    up = math.hypot(b.high - b.value, a.value - a.low)
    return value, value - down, value + up


def ratio(a: Row, b: Row) -> tuple[float, float | None, float | None]:
    """`b` over `a` less 1, the same on logarithms; figures must be positive."""
    value = b.value / a.value - 1
    bounds = (a.low, a.high, b.low, b.high)
    if None in bounds or min(bounds) <= 0:
        return value, None, None
    middle = math.log(b.value / a.value)
    down = math.hypot(math.log(b.value / b.low), math.log(a.high / a.value))
    up = math.hypot(math.log(b.high / b.value), math.log(a.value / a.low))
    return value, math.exp(middle - down) - 1, math.exp(middle + up) - 1


def not_comparable(a: Row, b: Row) -> str | None:
    """Why two figures say nothing about each other: another verifier, scale, or machine for a speed."""
    if a.reproduction != b.reproduction:
        return "another verifier"
    if a.scale != b.scale:
        return f"{scale_label(b.scale)} against {scale_label(a.scale)}"
    if noted := a.note or b.note:
        return noted.partition(":")[0]
    if described(a.metric).unit in SPEED_UNITS and a.machine != b.machine:
        return "another machine"
    return None


def change(a: Row, b: Row) -> Change:
    """From `a` to `b`; both must have values."""
    is_relative = described(a.metric).unit in RELATIVE_UNITS and a.value > 0 and b.value > 0
    value, low, high = ratio(a, b) if is_relative else difference(a, b)
    why = not_comparable(a, b)
    factor, digits = _printed(a.metric, is_relative)
    least, most = (None if bound is None else round(factor * bound, digits) for bound in (low, high))
    verdict = f"not judged: {why}" if why else _verdict(least, most, described(a.metric).better)
    return Change(value, low, high, is_relative, verdict)


def _printed(metric: str, is_relative: bool) -> tuple[int, int]:
    """Factor and digits that a change is printed with; the verdict is on the interval as it is printed."""
    if is_relative or described(metric).unit == "share":
        return 100, 1
    return 1, 0 if described(metric).unit in ("count", "bytes") else 3


def _verdict(low: float | None, high: float | None, better: str) -> str:
    if low is None or high is None:
        return NO_INTERVAL
    if low <= 0 <= high:
        return TOGETHER
    if not better:
        return APART
    return BETTER if (low > 0) == (better == "higher") else WORSE


def change_written(metric: str, found: Change, value: float) -> str:
    """One number of a change as people read it: `+4.2%` for speeds, `−1.2` points for shares, `+0.08` else."""
    factor, digits = _printed(metric, found.is_relative)
    return signed(factor * value, digits) + ("%" if found.is_relative else "")
