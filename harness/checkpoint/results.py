"""What a run of this project says of one draft: its figures, how it was trained, and on what. Called by `card`.

Reads results.csv and provenance.json as the report wrote them, the training's summary, the capture's manifest and the
list of prompt sources.
"""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from harness.checkpoint.release import weight_hashes
from harness.errors import UserError
from harness.jsonfile import read_object
from harness.tables import AGAIN, check_table, read_table

BASE = "none"  # the variant without a draft


@dataclass(frozen=True)
class Results:
    """Of one draft in one run.

    Attributes:
        target: name of the run.
        rows: lines of results.csv of the draft and of no speculation.
        provenance: of the whole run, without the list of its files.
        training: the training's summary.
        capture: the capture's manifest without its list of shards.
        sources: the prompt sources, as prompts/sources.json lists them.
        config: config.json that was measured.
    """

    target: str
    variant: str
    rows: list[dict[str, str]]
    provenance: dict[str, Any]
    training: dict[str, Any]
    capture: dict[str, Any]
    sources: list[dict[str, Any]]
    config: dict[str, Any]

    def rows_of(self, variant: str, metric: str) -> dict[str, dict[str, str]]:
        """Rows by benchmark."""
        return {row["benchmark"]: row for row in self.rows if (row["variant"], row["metric"]) == (variant, metric)}


def _rows(path: Path, variant: str) -> list[dict[str, str]]:
    rows = [row for row in read_table(path) if row["variant"] in (variant, BASE)]
    if not any(row["variant"] == variant for row in rows):
        raise UserError(f"{path}: has no variant {variant!r}. Fix: name it with --variant")
    if missing := {"metric", "benchmark", "value", "low", "high", "n", "unit", "note"} - rows[0].keys():
        raise UserError(f"{path}: has no column {sorted(missing)[0]}. Fix: {AGAIN}")
    for row in rows:
        if bad := next((row[name] for name in ("value", "low", "high") if not _is_figure(row[name])), None):
            raise UserError(f"{path}: {row['variant']}, {row['metric']}: {bad!r} is not a number. Fix: {AGAIN}")
    return rows


def _is_figure(text: str) -> bool:
    try:
        return not text or isfinite(float(text))
    except ValueError:
        return False


def read_results(folder: Path, variant: str, draft: Path) -> Results:
    """The results of `variant` in results/<target>.

    Args:
        draft: folder of the draft that the card is for.

    Raises:
        UserError: the run is not finished or damaged, or its draft has other weights.
    """
    measured = folder / "drafts" / variant
    rows, provenance = _rows(folder / "results.csv", variant), read_object(folder / "provenance.json")
    check_table(folder / "results.csv", provenance)
    if weight_hashes(measured) != weight_hashes(draft):
        raise UserError(f"{folder}: measured other weights than those of {draft}. Fix: give the run of this draft")
    capture = read_object(folder / "capture" / "manifest.json")
    return Results(
        target=str(provenance.get("target", folder.name)),
        variant=variant,
        rows=rows,
        provenance={key: value for key, value in provenance.items() if key != "files"},
        training=read_object(folder / "training" / variant / "summary.json"),
        capture={key: value for key, value in capture.items() if key != "shards"},
        sources=read_object(folder / "prompts" / "sources.json").get("sources") or [],
        config=read_object(measured / "config.json"),
    )
