"""Writes a `Page` or a `Comparison` as one self-contained HTML file: styles, script and figures inside, nothing loaded.

Called by `python -m reports`.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from reports import metrics
from reports.cells import Table

if TYPE_CHECKING:
    from reports.compare import Comparison
    from reports.page import Page

TEMPLATES = Path(__file__).parent / "templates"
FILTER_FROM = 8  # a table with fewer rows is seen at a glance


def header_rows(table: Table) -> list[tuple[str, int]]:
    """Runs of neighbouring columns with one group name, as (name, columns); empty when no column has a group."""
    runs: list[tuple[str, int]] = []
    for column in table.columns:
        if runs and column.group and runs[-1][0] == column.group:
            runs[-1] = (column.group, runs[-1][1] + 1)
        else:
            runs.append((column.group, 1))
    return runs if any(name for name, _ in runs) else []


def _environment() -> Environment:
    """Everything that comes from results is escaped; only our own SVG, styles and script are taken as they are."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals |= {
        "header_rows": header_rows,
        "intervals": metrics.INTERVALS,
        "filter_from": FILTER_FROM,
        "css": (TEMPLATES / "report.css").read_text(),
        "script": (TEMPLATES / "report.js").read_text(),
    }
    return environment


def render(page: "Page") -> str:
    """The report of one run as text."""
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            page=page,
            provenance_text=json.dumps(page.provenance, indent=1, ensure_ascii=False),
            settings_text=json.dumps(page.settings, indent=1, ensure_ascii=False),
        )
    )


def render_comparison(page: "Comparison") -> str:
    """The comparison of several runs as text."""
    return _environment().get_template("comparison.html.j2").render(page=page)
