"""The figures of the report: acceptance per position and length, training curves, speed by concurrency.

Called by `reports.page`; drawn as inline SVG panels by `reports.drawing`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from reports.collect import BASE, Run
from reports.drawing import GLYPHS, INK, MUTED, SERIES, Panel, colour, draw, headroom, marker
from reports.names import benchmark_label, variant_label
from reports.rows import Results, Row

CURVE_POINTS = 150
ESTIMATE = "acceptance_length_pooled"
FAMILY_TITLES = {
    "loss": "Loss",
    "acc": "Accuracy per draft step",
    "agree": "Agreement with the verifier per draft step",
    "kl": "Divergence from the verifier per draft step, nats",
    ESTIMATE: "Acceptance length on unseen replies",
}


@dataclass
class FigureGroup:
    """Panels that share a legend: (label, glyph, series number) each."""

    caption: str
    legend: list[tuple[str, str, int]] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)


def _series(run: Run) -> dict[str, int]:
    return {variant: number for number, variant in enumerate(run.reproduction.variants)}


def _legend(run: Run, variants: Sequence[str]) -> list[tuple[str, str, int]]:
    numbers = _series(run)
    return [
        (variant_label(variant), GLYPHS[numbers[variant] % SERIES], numbers[variant] % SERIES) for variant in variants
    ]


def _whiskers(rows: Sequence[Row]) -> np.ndarray:
    """Distances from value to low and high, [2, rows]; zero where a row has no interval."""
    pairs = [(row.value - row.low, row.high - row.value) if row.low is not None else (0.0, 0.0) for row in rows]
    return np.clip(np.array(pairs).T, 0, None)


def acceptance(run: Run, results: Results) -> FigureGroup:
    """Acceptance length by benchmark, then for each benchmark the rate per draft position, with intervals."""
    benchmarks = results.measured("acceptance_length")
    caption = "Whiskers are 95% intervals. The dashed line is decoding without a draft."
    group = FigureGroup(caption, _legend(run, run.drafted))
    if benchmarks:
        group.panels.append(_length_panel(run, results, benchmarks))
    group.panels += [_position_panel(run, results, benchmark) for benchmark in benchmarks]
    return group


def _dots(axes: Axes, places: Sequence[float], rows: Sequence[Row], series: int, line: str = "none") -> None:
    """Values with whiskers in the look of a series."""
    look = {"color": colour(series), "marker": marker(series), "linestyle": line}
    axes.errorbar(places, [row.value for row in rows], _whiskers(rows), **look)


def _dodged(count: int, order: int, width: float) -> float:
    """Sideways place of series `order` of `count` within a category."""
    return width * (order - (count - 1) / 2) / max(count - 1, 1)


def _category_panel(
    panel: Panel, labels: Sequence[str], series: dict[int, list[Row | None]], line_at: float | None, start: float | None
) -> Panel:
    """Dots by category, one colour per series; `series` gives a row (or None) per category."""
    with draw(panel) as axes:
        for order, (number, rows) in enumerate(series.items()):
            shift = _dodged(len(series), order, 0.44)
            kept = [(place + shift, row) for place, row in enumerate(rows) if row and row.value is not None]
            if kept:
                _dots(axes, [place for place, _ in kept], [row for _, row in kept], number)
        if line_at is not None:
            axes.axhline(line_at, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.5, len(labels) - 0.5)
        headroom(axes, start)
    return panel


def _length_panel(run: Run, results: Results, benchmarks: list[str]) -> Panel:
    numbers = _series(run)
    series = {numbers[v]: [results.get(v, "acceptance_length", item) for item in benchmarks] for v in run.drafted}
    panel = Panel("fig-acceptance-length", "Acceptance length, tokens per verify step")
    return _category_panel(panel, [benchmark_label(item) for item in benchmarks], series, 1.0, 0.8)


def _position_panel(run: Run, results: Results, benchmark: str) -> Panel:
    numbers = _series(run)
    panel = Panel(
        f"fig-position-{benchmark}".replace("_", "-"), f"Accepted per draft position, {benchmark_label(benchmark)}"
    )
    with draw(panel) as axes:
        for order, variant in enumerate(run.drafted):
            if rows := _positions(results, variant, benchmark):
                places = np.arange(1, len(rows) + 1) + _dodged(len(run.drafted), order, 0.08)
                _dots(axes, places, rows, numbers[variant], "-")
        axes.set_xlabel("draft position")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_ylim(-0.03, 1.03)
    return panel


def _positions(results: Results, variant: str, benchmark: str) -> list[Row]:
    rows, position = [], 1
    while (row := results.get(variant, f"acceptance_rate_position_{position}", benchmark)) and row.value is not None:
        rows.append(row)
        position += 1
    return rows


def _thinned(values: list[float]) -> list[float]:
    """At most CURVE_POINTS means of neighbours."""
    parts = np.array_split(np.array(values, float), min(len(values), CURVE_POINTS))
    return [float(part.mean()) for part in parts]


def _curve(rows: list[dict[str, Any]], key: str, split: str | None) -> tuple[list[float], list[float]]:
    kept = [row for row in rows if row.get("split") == split and isinstance(row.get(key), int | float)]
    return [row["step"] for row in kept], [row[key] for row in kept]


def _step_families(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Metrics of a training row that exist per draft step, by family: {"acc": ["acc_step_1", "acc_step_2"]}."""
    keys = dict.fromkeys(key for row in rows for key in row if re.fullmatch(r"[a-z_]+_step_\d+", key))
    families: dict[str, list[str]] = {}
    for key in sorted(keys, key=lambda key: int(key.rpartition("_")[2])):
        families.setdefault(key.rpartition("_step_")[0], []).append(key)
    return families


def training(run: Run, variant: str) -> FigureGroup:
    """Loss, figures per draft step, and the acceptance length on unseen replies, by optimiser step."""
    rows = run.curves[variant]
    families = _step_families(rows)
    numbers = range(1, 1 + max((len(keys) for keys in families.values()), default=0))
    legend = [(f"draft step {number}", GLYPHS[number % SERIES], number % SERIES) for number in numbers]
    group = FigureGroup(
        f"Training of {variant_label(variant)}: thin lines are single steps averaged in small groups.", legend
    )
    group.panels.append(_training_panel(rows, variant, "loss", ["loss"], None))
    group.panels += [_training_panel(rows, variant, family, keys, None) for family, keys in families.items()]
    if _curve(rows, ESTIMATE, "validation")[0]:
        group.panels.append(_training_panel(rows, variant, ESTIMATE, [ESTIMATE], "validation"))
    return group


def _training_panel(rows: list[dict[str, Any]], variant: str, family: str, keys: list[str], split: str | None) -> Panel:
    title = FAMILY_TITLES.get(family, f"{family.replace('_', ' ')} per draft step")
    panel = Panel(f"fig-{family}-{variant}".replace("_", "-"), title)
    with draw(panel) as axes:
        for number, key in enumerate(keys, 1):
            paint = {"color": colour(number) if len(keys) > 1 else INK}
            xs, ys = _curve(rows, key, split)
            if split:
                axes.plot(xs, ys, marker="o", **paint)
            elif xs:
                axes.plot(_thinned(xs), _thinned(ys), linewidth=1.4, **paint)
        axes.set_xlabel("optimiser step")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        headroom(axes)
    return panel


def speed(run: Run, results: Results) -> FigureGroup:
    """Speed-up, tokens per second and inter-token latency by concurrency."""
    caption = "By requests at once. Whiskers are 95% intervals. The dashed line is the speed without a draft."
    group = FigureGroup(caption, _legend(run, run.reproduction.variants))
    group.panels.append(_speed_panel(run, results, "speedup", "Speed-up against no speculation", 1.0))
    group.panels.append(_speed_panel(run, results, "tokens_per_s", "Tokens per second", None))
    group.panels.append(_speed_panel(run, results, "itl_ms_p50", "Inter-token latency, median, ms", None))
    return group


def _speed_panel(run: Run, results: Results, metric: str, title: str, line_at: float | None) -> Panel:
    benchmark = run.reproduction.evaluate.latency.benchmark
    levels = sorted(int(level) for level in run.latency[BASE].concurrency)
    variants = run.drafted if line_at else run.reproduction.variants
    numbers = _series(run)
    series = {numbers[v]: [results.get(v, f"{metric}_c{level}", benchmark) for level in levels] for v in variants}
    panel = Panel(f"fig-{metric.replace('_', '-')}", title)
    return _category_panel(panel, [f"{level} at once" for level in levels], series, line_at, None if line_at else 0.0)


def all_figures(run: Run, results: Results) -> dict[str, list[FigureGroup]]:
    """The figure groups by the section of the page that shows them; groups without data are left out."""
    groups = {
        "acceptance": [acceptance(run, results)],
        "speed": [speed(run, results)],
        "training": [training(run, variant) for variant in run.training],
    }
    return {section: [group for group in found if group.panels] for section, found in groups.items()}
