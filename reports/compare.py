"""`python -m reports compare`: several result tables on one page, a column per run, changes against the first.

Takes results folders that `python -m reports` has finished, and kept tables such as those of reports/published/. Reads
results.csv and provenance alone, so that runs of other commits can be compared. Scales are never mixed in silence.
"""

import argparse
import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.files import replacing
from harness.progress import log
from harness.tables import check_table
from reports.cells import DASH, Cell, Column, Table, figure, texts
from reports.changes import APART, BETTER, TOGETHER, WORSE, Change, change, change_written
from reports.charts import category_panel
from reports.collect import read_json
from reports.drawing import Panel
from reports.figures import FigureGroup, legend
from reports.html import render_comparison
from reports.markdown import comparison_markdown
from reports.names import benchmark_label, listed, scale_label, variant_label
from reports.rows import Results, Row, read_csv
from reports.wording import described, parse, place

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
KEY_FIGURES = (
    "acceptance_length", "speedup", "tokens_per_s", "accuracy_flexible", "output_match_exact", "output_match_faults",
    "parity_gap",
)  # fmt: skip
DRAWN = ("acceptance_length", "speedup")
ALPHA = 0.05
MOST_TOLD = 6

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Source:
    """One result table: a letter, the path it was read from, its rows, and what provenance.json says of the run."""

    letter: str
    path: str
    results: Results
    provenance: dict[str, Any]

    @property
    def label(self) -> str:
        """`A: smollm2_135m, full run`."""
        row = self.results.rows[0]
        return f"{self.letter}: {row.reproduction}, {scale_label(row.scale)}"


@dataclass(frozen=True)
class Comparison:
    """The content of the page."""

    summary: list[str]
    warnings: list[str]
    sources: Table
    key: Table
    rest: Table
    figures: list[FigureGroup] = field(default_factory=list)


def load_source(path: Path, letter: str) -> Source:
    """A results folder or a CSV file with its provenance.

    Raises:
        UserError: no table, no provenance, or a table that is damaged or not its provenance's; one line names it.
    """
    table = path / "results.csv" if path.is_dir() else path
    beside = path / "provenance.json" if path.is_dir() else path.with_name(f"{path.stem}.provenance.json")
    if not beside.exists() and not path.is_dir():
        beside = path.with_name("provenance.json")
    rows = read_csv(table)
    if not beside.exists():
        raise UserError(f"{beside}: no such file, and no table is compared without provenance. Fix: keep both together")
    provenance = read_json(beside)
    check_table(table, provenance)
    shown = path.name if path.is_absolute() else path.as_posix()
    return Source(letter, shown, Results(rows), provenance)


def compare(sources: Sequence[Source]) -> Comparison:
    """Lay out the comparison; changes go from the first table to each of the others."""
    keys = list(dict.fromkeys(_key(row) for source in sources for row in source.results.rows if row.value is not None))
    key = [each for each in keys if parse(each[1]).base in KEY_FIGURES]
    rest = [each for each in keys if each not in set(key)]
    return Comparison(
        summary=[*_kinds(sources), *_verdicts(sources, keys)],
        warnings=list(_warnings(sources)),
        sources=_sources_table(sources),
        key=_table("key-figures", "Key figures side by side", sources, key),
        rest=_table("other-figures", "All other figures side by side", sources, rest),
        figures=_figures(sources, key),
    )


def _key(row: Row) -> Key:
    return row.variant, row.metric, row.benchmark


def _changes(sources: Sequence[Source], key: Key) -> Iterator[tuple[Source, Change | None]]:
    """Each further table with its change from the first; None where either has no value."""
    first = sources[0].results.get(*key)
    for source in sources[1:]:
        row = source.results.get(*key)
        both = first is not None and row is not None and None not in (first.value, row.value)
        yield source, change(first, row) if both else None


def _table(slug: str, caption: str, sources: Sequence[Source], keys: Sequence[Key]) -> Table:
    columns = texts("Variant", "Figure", "Benchmark")
    columns += [Column(source.letter, group=scale_label(source.results.rows[0].scale)) for source in sources]
    for source in sources[1:]:
        columns += [Column(f"{source.letter} against {sources[0].letter}"), Column("Verdict", numeric=False)]
    table = Table(slug, caption, columns)
    for key in keys:
        variant, metric, benchmark = key
        told = ", ".join(part for part in (described(metric).label, place(metric)) if part)
        cells = [Cell(variant_label(variant), sort=variant, tone="name"), Cell(told)]
        cells.append(Cell(benchmark_label(benchmark) or DASH))
        cells += [figure(source.results.get(*key)) for source in sources]
        for _, found in _changes(sources, key):
            cells += _change_cells(metric, found)
        table.rows.append(cells)
    return table


def _change_cells(metric: str, found: Change | None) -> list[Cell]:
    if found is None:
        return [Cell(DASH, sort="", tone="absent"), Cell(DASH, tone="absent")]
    bounds = (
        ""
        if found.low is None
        else " to ".join(change_written(metric, found, each) for each in (found.low, found.high))
    )
    tone = {BETTER: "met", WORSE: "missed"}.get(found.verdict, "")
    return [Cell(change_written(metric, found, found.value), bounds, found.value), Cell(found.verdict, tone=tone)]


def _sources_table(sources: Sequence[Source]) -> Table:
    labels = ("", "Reproduction", "Scale", "Verifier", "Commit", "Finished", "Machine", "Engine", "Read from")
    table = Table("sources-table", "The runs compared", texts(*labels))
    for source in sources:
        row, known = source.results.rows[0], source.provenance
        commits = ", ".join((commit or "unknown")[:12] for commit in known.get("commits", [])) or row.commit[:12]
        dirty = " with uncommitted changes" if known.get("dirty") else ""
        engines = [part for part in row.versions.split("; ") if part.startswith("vllm")]
        told = [source.letter, row.reproduction, scale_label(row.scale), str(known.get("verifier", "unknown"))]
        told += [commits + dirty, row.finished_at[:16].replace("T", " "), row.machine, ", ".join(engines), source.path]
        table.rows.append([Cell(text) for text in told])
    return table


def _kinds(sources: Sequence[Source]) -> Iterator[str]:
    """What is set side by side, so that nobody takes a smoke run for a full one."""
    scales = Counter(source.results.rows[0].scale for source in sources)
    names = list(dict.fromkeys(source.results.rows[0].reproduction for source in sources))
    told = listed([f"{n} {scale_label(scale)}{'' if n == 1 else 's'}" for scale, n in scales.items()], "and")
    yield f"{told} of {listed(names, 'and')}."
    if len(scales) > 1:
        yield "Figures of different scales stand side by side and are not judged against each other."
    if len(names) > 1:
        yield "Figures of different verifiers stand side by side and are not judged against each other."


def _verdicts(sources: Sequence[Source], keys: Sequence[Key]) -> Iterator[str]:
    for source in sources[1:]:
        found = [(key, dict(_by_letter(sources, key))[source.letter]) for key in keys]
        judged = [(key, each) for key, each in found if each and each.verdict in (BETTER, WORSE, APART, TOGETHER)]
        if not judged:
            continue
        apart = [(key, each) for key, each in judged if each.verdict != TOGETHER]
        yield (
            f"{source.letter} against {sources[0].letter}: {len(apart)} of {len(judged)} figures with intervals differ "
            f"beyond them; about {ALPHA * len(judged):.0f} would by chance alone."
        )
        order = sorted(apart, key=lambda pair: pair[1].verdict != WORSE)
        if order:
            more = f", and {len(order) - MOST_TOLD} more" if len(order) > MOST_TOLD else ""
            yield f"Told apart: {'; '.join(_told(key, each) for key, each in order[:MOST_TOLD])}{more}."


def _by_letter(sources: Sequence[Source], key: Key) -> Iterator[tuple[str, Change | None]]:
    for source, found in _changes(sources, key):
        yield source.letter, found


def _told(key: Key, found: Change) -> str:
    variant, metric, benchmark = key
    where = ", ".join(part for part in (place(metric), benchmark_label(benchmark)) if part)
    figure_name = f"{described(metric).label.lower()}{f' ({where})' if where else ''}"
    return f"{variant_label(variant)}, {figure_name} {change_written(metric, found, found.value)}, {found.verdict}"


def _warnings(sources: Sequence[Source]) -> Iterator[str]:
    rows = [source.results.rows[0] for source in sources]
    if len({row.machine for row in rows}) > 1:
        yield "The runs come from different machines, so speeds are shown and not judged."
    if len({row.versions for row in rows}) > 1:
        yield "The runs used different versions of the tools; a change may come from either side."
    yield from _other_settings(sources)
    for source in sources:
        if source.provenance.get("dirty") is not False:
            yield f"{source.letter} was measured with uncommitted changes or outside a checkout."


def _other_settings(sources: Sequence[Source]) -> Iterator[str]:
    first = {_key(row): row.settings_sha256 for row in sources[0].results.rows if row.value is not None}
    for source in sources[1:]:
        common = [row for row in source.results.rows if row.value is not None and _key(row) in first]
        other = sum(row.settings_sha256 != first[_key(row)] for row in common)
        if other:
            of = f"behind {other} of {len(common)} common figures"
            yield f"{source.letter} has other settings than {sources[0].letter} {of}; a change may come from them."


def _figures(sources: Sequence[Source], keys: Sequence[Key]) -> list[FigureGroup]:
    """Acceptance length and speed-up by variant, a colour per run."""
    group = FigureGroup("Whiskers are 95% intervals. The dashed line is decoding without a draft.")
    group.legend = legend([source.label for source in sources], range(len(sources)))
    for metric, benchmark in dict.fromkeys((key[1], key[2]) for key in keys if parse(key[1]).base in DRAWN):
        variants = list(dict.fromkeys(key[0] for key in keys if key[1:] == (metric, benchmark)))
        series = {n: [each.results.get(v, metric, benchmark) for v in variants] for n, each in enumerate(sources)}
        title = ", ".join(part for part in (described(metric).label, place(metric), benchmark_label(benchmark)) if part)
        slug = f"fig-{metric}-{benchmark}".replace("_", "-").replace("/", "-")
        panel = Panel(slug, title)
        group.panels.append(category_panel(panel, list(map(variant_label, variants)), series, described(metric).line))
    return [group] if group.panels else []


def _csv(sources: Sequence[Source]) -> str:
    """One line per figure and table compared with the first, as on the page."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["variant", "metric", "benchmark", "unit", "from", "from_scale", "to", "to_scale", "value_from",
                     "value_to", "change", "low", "high", "relative", "verdict"])  # fmt: skip
    for key in dict.fromkeys(_key(row) for source in sources for row in source.results.rows if row.value is not None):
        for source, found in _changes(sources, key):
            if found is None:
                continue
            a, b = sources[0].results.get(*key), source.results.get(*key)
            numbers = [a.value, b.value, found.value, found.low, found.high]
            shown = ["" if each is None else format(each, ".6g") for each in numbers]
            names = [sources[0].path, a.scale, source.path, b.scale]
            writer.writerow([*key, a.unit, *names, *shown, "yes" if found.is_relative else "no", found.verdict])
    return out.getvalue()


def compare_main(arguments: list[str]) -> int:
    """Write comparison.html, .md and .csv, or print what they say in short."""
    parser = argparse.ArgumentParser(
        prog="python -m reports compare", description="Set result tables side by side; changes are against the first."
    )
    parser.add_argument("results", type=Path, nargs="+", help="results folder of a run, or a kept results table (CSV)")
    parser.add_argument(
        "--out", type=Path, help="folder for comparison.html, .md and .csv; without it the changes are printed"
    )
    given = parser.parse_args(arguments)
    if not 2 <= len(given.results) <= len(LETTERS):
        raise UserError(f"results: {len(given.results)} given. Fix: name 2 to {len(LETTERS)} result tables")
    sources = [load_source(path, letter) for path, letter in zip(given.results, LETTERS, strict=False)]
    page = compare(sources)
    if given.out is None:
        print("\n".join([*(f"{each.label} ({each.path})" for each in sources), *page.summary, *page.warnings]))
        return 0
    texts_by_name = {"html": render_comparison(page), "md": comparison_markdown(page), "csv": _csv(sources)}
    for ending, text in texts_by_name.items():
        with replacing(given.out / f"comparison.{ending}") as partial:
            partial.write_text(text, encoding="utf-8")
    log(f"{given.out / 'comparison.html'}: written")
    return 0
