"""An answer of "In short", and how figures are told in it. Used by `reports.advice`, `soundness`, `others`."""

from dataclasses import dataclass

from reports.rows import Row
from reports.wording import spread, written


@dataclass(frozen=True)
class Answer:
    """A question, its answer in a few words, and the figures behind it. `tone` is `met`, `missed` or nothing."""

    question: str
    verdict: str
    sentences: list[str]
    tone: str = ""


def low(row: Row) -> float:
    """The lower bound, or the value of a figure without an interval."""
    return row.value if row.low is None else row.low


def high(row: Row) -> float:
    """The upper bound, or the value of a figure without an interval."""
    return row.value if row.high is None else row.high


def is_faster(row: Row) -> bool:
    """Surely faster than without a draft: the interval, as it is printed, lies above 1."""
    return round(low(row), 2) > 1


def is_slower(row: Row) -> bool:
    """Surely slower: the interval, as it is printed, lies below 1."""
    return round(high(row), 2) < 1


def usable(row: Row | None) -> bool:
    """A value that may be compared: a note beside one says that it may not."""
    return row is not None and row.value is not None and not row.note


def overlap(a: Row, b: Row) -> bool:
    """Whether the intervals of two figures have a point in common."""
    return low(a) <= high(b) and low(b) <= high(a)


def in_words(row: Row) -> str:
    """`2.31× (2.20 to 2.42)`."""
    interval = spread(row.metric, row.low, row.high)
    return written(row.metric, row.value) + (f" ({interval})" if interval else ", without an interval")
