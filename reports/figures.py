"""The figures of the report: what the metrics ask for, shorter drafts, and the training curves.

Called by `reports.page`; panels of rows come from `reports.charts`, all are drawn by `reports.drawing`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from reports.charts import panels
from reports.collect import Run
from reports.drawing import INK, Panel, colour, dashed, draw, glyph, headroom, marker, series_number
from reports.metrics import METRICS
from reports.names import benchmark_label, variant_label
from reports.rows import Results

CURVE_POINTS = 150
ESTIMATE = "acceptance_length_pooled"
FAMILY_TITLES = {
    "loss_in_all": "Loss",
    "loss": "Loss per draft step",
    "acc": "Accuracy per draft step",
    "agree": "Agreement with the verifier per draft step",
    "kl": "Divergence from the verifier per draft step, nats",
    ESTIMATE: "Acceptance length on unseen replies",
}
CAPTIONS = {
    "speed": "Whiskers are 95% intervals. The dashed line is the speed without a draft.",
    "acceptance": "Whiskers are 95% intervals. The dashed line is decoding without a draft.",
}


@dataclass
class FigureGroup:
    """Panels that share a legend: (label, glyph, series number) each. With a `fold` they are shown on demand."""

    caption: str
    fold: str = ""
    legend: list[tuple[str, str, int]] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)


def legend(labels: Sequence[str], numbers: Sequence[int]) -> list[tuple[str, str, int]]:
    """Entries of a legend: label, shape and colour of each series."""
    return [(label, glyph(number), series_number(number)) for label, number in zip(labels, numbers, strict=True)]


def series_of(results: Results) -> dict[str, int]:
    """A number for the look of every variant that has a figure, in order of appearance."""
    variants = dict.fromkeys(row.variant for row in results.rows if row.value is not None)
    return {variant: number for number, variant in enumerate(variants)}


def of_section(results: Results, section: str) -> FigureGroup:
    """All panels of a section with the variants that have figures there."""
    series = series_of(results)
    drawn = {name for name, metric in METRICS.items() if metric.section == section and metric.chart}
    used = [v for v in series if any(row.variant == v and row.base in drawn for row in results.rows)]
    group = FigureGroup(CAPTIONS.get(section, "Whiskers are 95% intervals."))
    group.legend = legend(list(map(variant_label, used)), [series[variant] for variant in used])
    group.panels = panels(results, series, section)
    if section == "acceptance":
        group.panels += [_shorter(results, series, item) for item in results.measured("acceptance_rate_position_1")]
    return group


def _shorter(results: Results, series: dict[str, int], benchmark: str) -> Panel:
    """What a step would yield if only its first k draft tokens were checked: 1 + their rates added up."""
    panel = Panel(
        f"fig-shorter-{benchmark}".replace("_", "-"),
        f"Acceptance length by draft tokens used, {benchmark_label(benchmark)}",
    )
    with draw(panel) as axes:
        for variant, number in series.items():
            lengths, position = [1.0], 1
            while (rate := results.value(variant, f"acceptance_rate_position_{position}", benchmark)) is not None:
                lengths.append(lengths[-1] + rate)
                position += 1
            if len(lengths) > 1:
                axes.plot(range(len(lengths)), lengths, color=colour(number), marker=marker(number))
        dashed(axes, 1.0)
        axes.set_xlabel("draft tokens per step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        headroom(axes)
    return panel


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
    """Loss and figures per draft step, by optimiser step."""
    rows = run.curves[variant]
    families = _step_families(rows)
    numbers = range(1, 1 + max((len(keys) for keys in families.values()), default=0))
    label = variant_label(variant)
    group = FigureGroup("Thin lines are single steps averaged in small groups.", fold=f"Training curves of {label}")
    group.legend = legend([f"draft step {number}" for number in numbers], numbers)
    group.panels.append(_training_panel(rows, variant, "loss_in_all", ["loss"]))
    group.panels += [_training_panel(rows, variant, family, keys) for family, keys in families.items()]
    return group


def learning(run: Run, results: Results) -> FigureGroup:
    """How the drafts came on, side by side: acceptance length on unseen replies by optimiser step."""
    numbers = {variant: number for variant, number in series_of(results).items() if variant in run.curves}
    curves = {variant: _curve(run.curves[variant], ESTIMATE, "validation") for variant in numbers}
    group = FigureGroup("Measured during training, on replies that no draft learnt from.")
    kept = [variant for variant, (steps, _) in curves.items() if steps]
    group.legend = legend(list(map(variant_label, kept)), [numbers[variant] for variant in kept])
    if kept:
        panel = Panel("fig-learning", FAMILY_TITLES[ESTIMATE])
        with draw(panel) as axes:
            for variant in kept:
                axes.plot(*curves[variant], color=colour(numbers[variant]), marker=marker(numbers[variant]))
            axes.set_xlabel("optimiser step")
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            headroom(axes)
        group.panels.append(panel)
    return group


def _training_panel(rows: list[dict[str, Any]], variant: str, family: str, keys: list[str]) -> Panel:
    title = FAMILY_TITLES.get(family, f"{family.replace('_', ' ')} per draft step")
    panel = Panel(f"fig-{family}-{variant}".replace("_", "-"), title)
    with draw(panel) as axes:
        for number, key in enumerate(keys, 1):
            paint = {"color": colour(number) if len(keys) > 1 else INK}
            xs, ys = _curve(rows, key, None)
            if xs:
                axes.plot(_thinned(xs), _thinned(ys), linewidth=1.4, **paint)
        axes.set_xlabel("optimiser step")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        headroom(axes)
    return panel


def all_figures(run: Run, results: Results) -> dict[str, list[FigureGroup]]:
    """The figure groups by the section of the page that shows them; groups without data are left out."""
    sections = dict.fromkeys(metric.section for metric in METRICS.values() if metric.chart)
    groups = {section: [of_section(results, section)] for section in sections}
    groups["training"] = [learning(run, results), *(training(run, variant) for variant in run.training)]
    return {section: kept for section, found in groups.items() if (kept := [each for each in found if each.panels])}
