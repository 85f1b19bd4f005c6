"""Writes a `Page` as Markdown, and the result table of the README.

Called by `python -m reports` and by `reports.publish`.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from reports import metrics
from reports.cells import Cell, Column, Table

if TYPE_CHECKING:
    from reports.compare import Comparison
    from reports.page import Page

SECTIONS = (
    ("leaderboard", "All variants side by side"), ("variants", "What each variant is"),
    ("gates", "Gates"), ("speed", "Speed"), ("servers", "Servers"),
    ("support", "Added to the engine"), ("in_pairs", "Drafts against each other"),
    ("further_speed", "Further figures of speed"),
    ("lengths", "What a step costs, by draft length"), ("acceptance", "Acceptance"),
    ("further_acceptance", "Further figures of acceptance"), ("further_sampling", "At a temperature above 0"),
    ("accuracy", "Accuracy"), ("parity", "From validation to serving"), ("training", "Training"), ("data", "Prompts"),
    ("capture", "Captured replies"), ("costs", "What each step took"),
    ("published", "Figures of others"),
    ("elsewhere", "Published for other verifiers"), ("not_run", "Not run"), ("all_figures", "All figures"),
    ("provenance", "Provenance"),
)  # fmt: skip
NOTHING = {
    "published": "No figures for drafts of this verifier are known from the literature.",
    "not_run": "Nothing was left out.",
    "gates": "This reproduction sets no gates.",
}


def _safe(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _cell(cell: Cell) -> str:
    if cell.sub and cell.tone == "absent":
        return _safe(f"{cell.text}: {cell.sub}")
    quiet = ", ".join(filter(None, (cell.sub.replace("(", "[").replace(")", "]"), cell.doubt)))
    return _safe(f"{cell.text} ({quiet})" if quiet else cell.text)


def _heading(column: Column) -> str:
    return f"{column.group}, {column.label}" if column.group else column.label


def markdown_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> str:
    """A GitHub table; numeric columns are right-aligned."""
    lines = ["| " + " | ".join(_safe(_heading(column)) for column in columns) + " |"]
    lines.append("| " + " | ".join("---:" if column.numeric else "---" for column in columns) + " |")
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def _table(table: Table) -> str:
    return markdown_table(table.columns, table.rows)


def render(page: "Page") -> str:
    """The report as Markdown; figures are only in the HTML page."""
    parts = [f"# {page.heading}"]
    if page.scale_note:
        parts.append(f"**This is a {page.scale_note}.**")
    parts.append("## In short")
    parts += [f"**{each.question}** {each.verdict}. {' '.join(each.sentences)}" for each in page.answers]
    parts += ["\n".join(f"- {warning}" for warning in page.warnings)] if page.warnings else []
    parts.append("\n".join(f"- {name}: {value}" for name, value in page.about))
    for name, title in SECTIONS:
        if name in page.tables or name in NOTHING:
            parts += [f"## {title}", *([page.notes[name]] if name in page.notes else [])]
            parts.append(_table(page.tables[name]) if name in page.tables else NOTHING[name])
        if name == "accuracy":
            parts += ["## Output differences", page.notes["output"], *_differences(page)]
    parts += [
        "## Terms",
        metrics.INTERVALS,
        "\n".join(f"- **{term.label}** ({term.read}): {term.meaning}" for term in page.definitions),
    ]
    parts += ["## Run it again", "```\n" + "\n".join(page.command) + "\n```"]
    return "\n\n".join(parts) + "\n"


def comparison_markdown(page: "Comparison") -> str:
    """The comparison of several runs as Markdown."""
    parts = ["# Runs compared", " ".join(page.summary)]
    parts += ["\n".join(f"- {warning}" for warning in page.warnings)] if page.warnings else []
    parts += [_table(page.sources), "## Key figures", _table(page.key), "## All other figures", _table(page.rest)]
    return "\n\n".join([*parts, metrics.INTERVALS]) + "\n"


def _differences(page: "Page") -> Iterator[str]:
    for variant in page.differences:
        yield f"**{variant.label}**: {variant.told}"
        for found in variant.shown:
            verdict = "fault" if found.is_fault else "near tie"
            yield (
                f"- {found.where}, {found.margin}, {verdict}: {_quoted(found.before)}, "
                f"then {_quoted(found.base)} becomes {_quoted(found.draft)}"
            )


def _quoted(text: str) -> str:
    return f"`{' '.join(text.replace('`', chr(39)).split())}`"
