"""Tables as plain cells, which both the HTML page and the Markdown write out. Used by `reports.tables` and the writers.

A cell's `sub` is its second, quieter line: an interval, a count, a reason.
"""

from dataclasses import dataclass, field

from reports.names import variant_label
from reports.rows import Row
from reports.wording import spread, written

DASH = "–"


@dataclass(frozen=True)
class Cell:
    """One cell: text, a quieter second line, the value to sort by, a tone (`met`, `missed`, `absent`, `name`).

    `doubt` says that the figure may not be compared.
    """

    text: str
    sub: str = ""
    sort: float | str | None = None
    tone: str = ""
    doubt: str = ""


@dataclass(frozen=True)
class Column:
    """Heading of a column; neighbouring columns of one `group` stand under a shared heading."""

    label: str
    group: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    """A table with an id on the page, a caption for screen readers, columns and rows."""

    slug: str
    caption: str
    columns: list[Column]
    rows: list[list[Cell]] = field(default_factory=list)


def texts(*labels: str) -> list[Column]:
    """Columns of text."""
    return [Column(label, numeric=False) for label in labels]


def numbers(*labels: str, group: str = "") -> list[Column]:
    """Columns of numbers."""
    return [Column(label, group) for label in labels]


def interval(row: Row) -> str:
    """`2.31 to 2.52`, or nothing."""
    return spread(row.metric, row.low, row.high)


def figure(row: Row | None, sub: str | None = None) -> Cell:
    """A row as a cell: value over interval (or `sub`) and `not comparable` where it is not; a dash for what does not
    apply; `not run` with its reason.
    """
    if row is None:
        return Cell(DASH, tone="absent")
    if row.value is None:
        head, _, reason = row.note.partition(": ")
        return Cell(head, reason, tone="absent")
    return Cell(
        written(row.metric, row.value),
        interval(row) if sub is None else sub,
        row.value,
        doubt=row.note.partition(":")[0],
    )


def plain(value: float | None, text: str | None = None) -> Cell:
    """A number that is no row: `text`, or the value with thousands separated; a dash for None."""
    if value is None:
        return figure(None)
    return Cell(f"{value:,.0f}" if text is None else text, sort=value)


def name(variant: str, note: str = "") -> Cell:
    """The cell that names a variant."""
    return Cell(variant_label(variant), note, variant, "name")
