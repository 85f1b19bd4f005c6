"""Writes a `Page` as one self-contained HTML file: styles, script and figures inside, nothing loaded from anywhere.

Called by `python -m reports`.
"""

import json
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from reports import metrics
from reports.cells import Table
from reports.page import Page

TEMPLATES = Path(__file__).parent / "templates"


def header_rows(table: Table) -> list[tuple[str, int]]:
    """Runs of neighbouring columns with one group name, as (name, columns); empty when no column has a group."""
    runs: list[tuple[str, int]] = []
    for column in table.columns:
        if runs and column.group and runs[-1][0] == column.group:
            runs[-1] = (column.group, runs[-1][1] + 1)
        else:
            runs.append((column.group, 1))
    return runs if any(name for name, _ in runs) else []


def render(page: Page) -> str:
    """The page as text. Everything that comes from results is escaped; only our own SVG is taken as it is."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals |= {"header_rows": header_rows, "intervals": metrics.INTERVALS}
    return environment.get_template("report.html.j2").render(
        page=page,
        css=(TEMPLATES / "report.css").read_text(),
        script=(TEMPLATES / "report.js").read_text(),
        provenance_text=json.dumps(page.provenance, indent=1, ensure_ascii=False),
    )
