"""Keeps the results of a run in the repository: reports/published/ with its page and badges, and the README's table.

`publish` and `renew` are `python -m reports publish`; `readme_table` is what they paste.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from harness.errors import UserError
from harness.files import replacing
from harness.tables import check_table
from reports.badge import badge, badge_text
from reports.cells import Cell, Column, figure, name
from reports.collect import BASE, read_json
from reports.markdown import markdown_table
from reports.names import SCALE_NOTES, benchmark_label, scale_label
from reports.rows import Results, Row, read_csv

PUBLISHED = Path("reports/published")
README = Path("README.md")
START, END = "<!-- results -->", "<!-- /results -->"


def publish(results: Path, published: Path = PUBLISHED, readme: Path = README) -> list[Path]:
    """Copy results.csv and provenance.json of a run, and renew the README's table when the run is a full one.

    Returns:
        The files written.

    Raises:
        UserError: no results or no provenance, or the checkout was dirty or unknown when they were measured.
    """
    table, provenance = results / "results.csv", results / "provenance.json"
    known = _clean_provenance(provenance)
    read_csv(table)
    check_table(table, known)
    published.mkdir(parents=True, exist_ok=True)
    written = []
    for source, ending in ((table, ".csv"), (provenance, ".provenance.json")):
        target = published / f"{known['target']}{ending}"
        with replacing(target) as partial:
            shutil.copyfile(source, partial)
        written.append(target)
    return [*written, *renew(published, readme)]


def renew(published: Path = PUBLISHED, readme: Path = README) -> list[Path]:
    """Write again what follows from the kept tables: a badge for each, the page over all, and the README's tables.

    Returns:
        The files written; the README only where a full run is kept.

    Raises:
        UserError: a kept table is damaged or lacks provenance, or the README lacks its markers.
    """
    kept = sorted(published.glob("*.csv"))
    if not kept:
        raise UserError(f"{published}: holds no table. Fix: give --results results/<target>")
    for table in kept:
        check_table(table, _clean_provenance(table.with_name(f"{table.stem}.provenance.json")))
    texts = {table.with_suffix(".svg"): badge(Results(read_csv(table))) for table in kept}
    texts[published / "README.md"] = published_page(kept)
    for path, text in texts.items():
        with replacing(path) as partial:
            partial.write_text(text, encoding="utf-8")
    if not _full(published):
        return list(texts)
    update_readme(readme, published)
    return [*texts, readme]


def _full(published: Path) -> list[Path]:
    return [path for path in sorted(published.glob("*.csv")) if read_csv(path)[0].scale == "full"]


def published_page(kept: Sequence[Path]) -> str:
    """The page of reports/published/: every kept table with its scale, full runs first."""
    parts = ["# Results of real runs", "Made by `python -m reports publish`; do not edit by hand."]
    scales = {path: read_csv(path)[0].scale for path in kept}
    for path in sorted(kept, key=lambda path: (list(SCALE_NOTES).index(scales[path]), path.name)):
        scale = scales[path]
        parts.append(f"## {path.stem}: {scale_label(scale)}")
        parts += [f"**This is a {SCALE_NOTES[scale]}.**"] if SCALE_NOTES[scale] else []
        parts.append(badge_line(path, path.parent))
        parts += [readme_table(path), f"All figures: [{path.name}]({path.name}); provenance: "
                  f"[{path.stem}.provenance.json]({path.stem}.provenance.json)."]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def badge_line(table: Path, seen_from: Path) -> str:
    """The Markdown that shows a table's badge on a page of folder `seen_from`."""
    alt = badge_text(Results(read_csv(table)))
    return f"![{' '.join(alt)}]({table.with_suffix('.svg').relative_to(seen_from).as_posix()})"


def _clean_provenance(path: Path) -> dict:
    if not path.exists():
        raise UserError(
            f"{path}: no such file, and nothing is published without provenance. Fix: run python -m reports first"
        )
    known = read_json(path)
    if missing := [key for key in ("target", "scale", "commits", "dirty", "files") if key not in known]:
        raise UserError(f"{path}: {missing[0]}: missing. Fix: run python -m reports for this run again")
    if not re.fullmatch(r"[a-z0-9_]+", str(known["target"])) or not isinstance(known["commits"], list):
        raise UserError(f"{path}: target or commits damaged. Fix: run python -m reports for this run again")
    if known["dirty"] is not False or None in known["commits"]:
        state = "with uncommitted changes" if known["dirty"] else "outside a git checkout"
        raise UserError(f"{path}: measured {state}. Fix: commit, run the target again, then publish")
    return known


def update_readme(readme: Path, published: Path) -> None:
    """Put the tables of all published full runs between the README's two markers.

    Raises:
        UserError: the README or one of its markers is missing.
    """
    text = readme.read_text(encoding="utf-8") if readme.exists() else ""
    if START not in text or END not in text.partition(START)[2]:
        raise UserError(f"{readme}: no {START} ... {END}. Fix: add the two lines where the result table belongs")
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    seen_from = readme.parent
    tables = "\n\n".join(f"{badge_line(path, seen_from)}\n\n{readme_table(path)}" for path in _full(published))
    with replacing(readme) as partial:
        partial.write_text(f"{before}{START}\n{tables}\n{END}{after}", encoding="utf-8")


def readme_table(results_csv: Path) -> str:
    """The figures that decide between variants, one row each, and a line that says where they were measured."""
    results = Results(read_csv(results_csv))
    measured = [row for row in results.rows if row.value is not None]
    variants = list(dict.fromkeys(row.variant for row in measured))
    lengths = results.measured("acceptance_length")
    tasks = list(dict.fromkeys(row.benchmark for row in measured if row.metric == "accuracy_flexible"))
    speed_at = next((row.benchmark for row in measured if row.metric == "tokens_per_s_c1"), "")
    columns = [Column("Variant", numeric=False), Column("Tokens/s, one request"), Column("Speed-up")]
    columns += [Column(f"Acceptance length, {benchmark_label(item)}") for item in lengths]
    columns += [Column("Replies identical"), Column("Faults")]
    columns += [Column(f"Accuracy, {benchmark_label(task)}") for task in tasks]
    rows = [_readme_row(results, variant, speed_at, lengths, tasks) for variant in variants]
    speeds = [row.note for row in measured if row.metric in ("tokens_per_s_c1", "speedup_c1") and row.note]
    doubts = " ".join(f"{note[0].upper()}{note[1:]}." for note in dict.fromkeys(speeds))
    return "\n\n".join(filter(None, (markdown_table(columns, rows), doubts, _measured_on(measured[0]))))


def _readme_row(results: Results, variant: str, speed_at: str, lengths: list[str], tasks: list[str]) -> list[Cell]:
    cells = [name(variant), figure(results.get(variant, "tokens_per_s_c1", speed_at), "")]
    cells.append(Cell("1") if variant == BASE else figure(results.get(variant, "speedup_c1", speed_at)))
    cells += [figure(results.get(variant, "acceptance_length", item)) for item in lengths]
    cells += [
        figure(results.get(variant, "output_match_exact"), ""),
        figure(results.get(variant, "output_match_faults")),
    ]
    return [*cells, *(figure(results.get(variant, "accuracy_flexible", task), "") for task in tasks)]


def _measured_on(row: Row) -> str:
    engines = [part for part in row.versions.split("; ") if part.startswith("vllm")]
    return (
        f"`{row.reproduction}`, {row.scale} run on {row.machine}; {', '.join(engines)}; commit {row.commit[:12]}, "
        f"{row.finished_at[:10]}. In brackets: 95% intervals."
    )
