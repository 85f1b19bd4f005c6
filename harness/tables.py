"""results.csv as text cells, read so that no part can be missing in silence.

Called by `reports` and `harness.checkpoint.results`. A table cut at the end of a line looks whole: provenance.json
therefore holds what `table_record` says of it.
"""

import csv
import io
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.files import file_sha256

RECORD = "table"  # key in provenance.json; runs of earlier versions lack it
AGAIN = "run python -m reports for that run again; a kept table: git checkout it"
OTHER = "give the results folder of a run, or a kept results table"
MARKS = {"variant", "metric", "value"}  # columns by which a results table is known


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a results table, each with every column of the heading.

    Raises:
        UserError: no such file, no results table, no rows, or a row with fields too few or too many; one line names it.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Fix: run python -m reports for that run first") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: no results table. Fix: {OTHER}") from None
    reader, rows = csv.reader(io.StringIO(text, newline=""), strict=True), []
    try:
        columns = next(reader, [])
        if not set(columns) >= MARKS:
            raise UserError(f"{path}: no results table. Fix: {OTHER}")
        for cells in reader:
            if len(cells) != len(columns):
                raise csv.Error(f"{len(cells)} of {len(columns)} fields")
            rows.append(dict(zip(columns, cells, strict=True)))
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: damaged, {error}. Fix: {AGAIN}") from None
    if not rows or not text.endswith("\n"):
        raise UserError(f"{path}: {'the last line is cut' if rows else 'no rows'}. Fix: {AGAIN}")
    return rows


def table_record(path: Path) -> dict[str, Any]:
    """Row count and SHA-256 of a results table, as provenance.json keeps them under `RECORD`."""
    return {"rows": len(read_table(path)), "sha256": file_sha256(path)}


def check_table(path: Path, provenance: dict[str, Any]) -> None:
    """Refuse a table that is not the one `provenance` was written with; one of an earlier version says nothing.

    Raises:
        UserError: the table is damaged, or other than it was; one line says so with both row counts.
    """
    wanted, found = provenance.get(RECORD), table_record(path)
    if wanted is None or wanted == found:
        return
    rows = wanted.get("rows") if isinstance(wanted, dict) else None
    raise UserError(f"{path}: {found['rows']} rows, not the {rows} of its provenance, or changed. Fix: {AGAIN}")
