"""Panels drawn from rows alone: a metric says in `reports.metrics` whether and over what it is drawn.

Called by `reports.figures` for the report of one run and by `reports.compare` for several. A series is whatever the
colours tell apart there: the variants of a run, or the runs of a comparison.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from reports.drawing import Panel, colour, dashed, draw, headroom, marker
from reports.metrics import AXES, METRICS, Metric
from reports.names import benchmark_label
from reports.rows import Results, Row
from reports.wording import parse

LOG_FROM = 4.0  # loads that differ by this factor or more stand on a logarithmic axis
DODGE = 0.44  # of the place that a category has
WORDS_ACROSS = 34  # letters of all labels together that fit side by side under a panel

Points = dict[float, Row]


def whiskers(rows: Sequence[Row]) -> np.ndarray:
    """Distances from value to low and high, [2, rows]; zero where a row has no interval."""
    pairs = [(row.value - row.low, row.high - row.value) if row.low is not None else (0.0, 0.0) for row in rows]
    return np.clip(np.array(pairs).T, 0, None)


def dots(axes: Axes, places: Sequence[float], rows: Sequence[Row], series: int, line: str = "none") -> None:
    """Values with whiskers in the look of a series."""
    look = {"color": colour(series), "marker": marker(series), "linestyle": line}
    axes.errorbar(places, [row.value for row in rows], whiskers(rows), **look)


def dodged(count: int, order: int, width: float) -> float:
    """Sideways place of series `order` of `count` within a category."""
    return width * (order - (count - 1) / 2) / max(count - 1, 1)


def category_panel(
    panel: Panel, labels: Sequence[str], series: Mapping[int, Sequence[Row | None]], line_at: float | None = None
) -> Panel:
    """Dots by category, one colour per series; `series` gives a row (or None) per category.

    Categories stand side by side, or below each other where their names are too long for that.
    """
    if sum(map(len, labels)) > WORDS_ACROSS:
        return _rows_panel(panel, labels, series, line_at)
    with draw(panel) as axes:
        for order, (number, rows) in enumerate(series.items()):
            shift = dodged(len(series), order, DODGE)
            kept = [(place + shift, row) for place, row in enumerate(rows) if row and row.value is not None]
            if kept:
                dots(axes, [place for place, _ in kept], [row for _, row in kept], number)
        dashed(axes, line_at)
        axes.set_xticks(range(len(labels)), labels)
        axes.set_xlim(-0.5, len(labels) - 0.5)
        headroom(axes)
    return panel


def _rows_panel(
    panel: Panel, labels: Sequence[str], series: Mapping[int, Sequence[Row | None]], line_at: float | None
) -> Panel:
    """The same with categories below each other, the first on top."""
    with draw(panel, rows=len(labels)) as axes:
        for order, (number, rows) in enumerate(series.items()):
            shift = dodged(len(series), order, DODGE)
            kept = [(place + shift, row) for place, row in enumerate(rows) if row and row.value is not None]
            look = {"color": colour(number), "marker": marker(number), "linestyle": "none"}
            if kept:
                chosen = [row for _, row in kept]
                values, places = [row.value for row in chosen], [place for place, _ in kept]
                axes.errorbar(values, places, xerr=whiskers(chosen), **look)
        dashed(axes, line_at, upright=True)
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
    return panel


def line_panel(
    panel: Panel,
    metric: Metric,
    axis: str,
    lines: Mapping[int, Points],
    upper: Mapping[int, Points],
    hollow: Mapping[int, Points],
) -> Panel:
    """Lines over what the metric's name counts at its end.

    `upper` holds a second, dotted line per series, `hollow` points of the metric that stands beside.
    """
    places = sorted({at for points in [*lines.values(), *upper.values(), *hollow.values()] for at in points})
    is_log = places[0] > 0 and places[-1] / places[0] >= LOG_FROM and axis in ("c", "r")
    scaled = {at: math.log2(at) if is_log else at for at in places}
    reach = max(scaled[places[-1]] - scaled[places[0]], 1.0)
    with draw(panel) as axes:
        for order, (number, points) in enumerate(lines.items()):
            shift = dodged(len(lines), order, 0.05 * reach)
            dots(
                axes, [scaled[at] + shift for at in sorted(points)], [points[at] for at in sorted(points)], number, "-"
            )
        for number, points in upper.items():
            ats = sorted(points)
            values = [points[at].value for at in ats]
            axes.plot(
                [scaled[at] for at in ats], values, ":", color=colour(number), marker=marker(number), markersize=3
            )
        for number, points in hollow.items():
            look = {"color": colour(number), "marker": marker(number), "markerfacecolor": "none", "markersize": 9}
            rows = [points[at] for at in sorted(points)]
            ats = [scaled[at] for at in sorted(points)]
            axes.errorbar(ats, [row.value for row in rows], whiskers(rows), linestyle="none", **look)
        dashed(axes, metric.line)
        axes.set_xlabel(AXES[axis])
        axes.set_xticks([scaled[at] for at in places], [f"{at:g}" for at in places])
        axes.set_xlim(scaled[places[0]] - 0.08 * reach, scaled[places[-1]] + 0.08 * reach)
        if metric.unit == "share":
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
            axes.set_ylim(-0.03, 1.03)
        else:
            headroom(axes, None if metric.line is not None else 0.0)
    return panel


def _slug(*parts: str) -> str:
    text = "-".join(part for part in parts if part)
    return "fig-" + "".join(letter if letter.isalnum() else "-" for letter in text.lower())


def panels(results: Results, series: Mapping[str, int], section: str) -> list[Panel]:
    """Every panel that the metrics of a section ask for, in their order; those without a value are left out.

    Args:
        results: the rows.
        series: number of each variant's colour.
        section: id of the section on the page.
    """
    made: list[Panel] = []
    # What has a line to beat comes first: it answers whether a draft pays.
    for name, metric in sorted(METRICS.items(), key=lambda item: item[1].line is None):
        if metric.section != section or not metric.chart:
            continue
        if metric.chart == "benchmark":
            made += _by_benchmark(results, series, name, metric)
        else:
            made += _over_axes(results, series, name, metric)
        made += _by_category(results, series, name, metric)
    return made


def _by_benchmark(results: Results, series: Mapping[str, int], name: str, metric: Metric) -> list[Panel]:
    benchmarks = results.measured(name)
    rows = {series[v]: [results.get(v, name, item) for item in benchmarks] for v in _measured(results, series, name)}
    panel = Panel(_slug(name), metric.label)
    return [category_panel(panel, list(map(benchmark_label, benchmarks)), rows, metric.line)] if benchmarks else []


def _measured(results: Results, series: Mapping[str, int], base: str) -> list[str]:
    """Variants with a value of a metric, whatever its name's end says, in the order of `series`."""
    having = {row.variant for row in results.rows if row.value is not None and parse(row.metric).base == base}
    return [variant for variant in series if variant in having]


def _over_axes(results: Results, series: Mapping[str, int], name: str, metric: Metric) -> list[Panel]:
    """A panel per benchmark and axis: the median (or the only) figure, and the 95th percentile dotted."""
    found, others = _points(results, name), _points(results, metric.beside) if metric.beside else {}
    made = []
    for (benchmark, axis), variants in found.items():
        shown = {variant: variants[variant] for variant in series if variant in variants}
        first = "p50" if any("p50" in kinds for kinds in shown.values()) else ""
        lines = {series[v]: kinds[first] for v, kinds in shown.items() if first in kinds}
        upper = {series[v]: kinds["p95"] for v, kinds in shown.items() if "p95" in kinds and first}
        besides = others.get((benchmark, axis), {})
        hollow = {series[v]: kinds[""] for v, kinds in besides.items() if v in series and "" in kinds}
        ending = ", median and 95th percentile (dotted)" if upper else ""
        ending += f", {METRICS[metric.beside].label.lower()} (hollow)" if hollow else ""
        unit = f", {metric.unit}" if metric.unit in ("ms", "s") else ""
        over = f" by {AXES[axis]}" if axis in ("k", "r") else ""
        panel = Panel(_slug(name, axis, benchmark), f"{metric.label}{unit}{over}{ending}, {benchmark_label(benchmark)}")
        if lines:
            made.append(line_panel(panel, metric, axis, lines, upper, hollow))
    return made


def _points(results: Results, name: str) -> dict[tuple[str, str], dict[str, dict[str, Points]]]:
    """Rows of a metric by (benchmark, axis), variant, percentile and place on the axis."""
    found: dict[tuple[str, str], dict[str, dict[str, Points]]] = {}
    for row in results.rows:
        told = parse(row.metric)
        if told.base == name and told.at is not None and row.value is not None:
            variants = found.setdefault((row.benchmark, told.axis), {})
            variants.setdefault(row.variant, {}).setdefault(told.percentile, {})[told.at] = row
    return found


def _by_category(results: Results, series: Mapping[str, int], name: str, metric: Metric) -> list[Panel]:
    """A panel per benchmark that is told apart by category."""
    made = []
    found = results.categories(name)
    for source in dict.fromkeys(item.partition("/")[0] for item in found):
        items = [item for item in found if item.partition("/")[0] == source]
        labels = [benchmark_label(item.partition("/")[2]) for item in items]
        rows = {series[v]: [results.get(v, name, item) for item in items] for v in _measured(results, series, name)}
        title = f"{metric.label} by category, {benchmark_label(source)}"
        made.append(category_panel(Panel(_slug(name, "category", source), title), labels, rows, metric.line))
    return made
