"""Small SVG panels for the page: drawn by matplotlib, coloured by the page's own CSS variables.

One panel serves light and dark mode: it is drawn in marker colours that are then replaced with `var(--...)`. Called by
`reports.figures` only.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH_IN, HEIGHT_IN, DPI = 3.9, 2.75, 72
ROW_IN, FRAME_IN = 0.3, 0.5  # a panel with categories below each other grows with them
SERIES = 8
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
GLYPHS = ("●", "■", "▲", "◆", "▼", "✚", "✖", "⬢")
INK, MUTED, GRID = "#fb0001", "#fb0002", "#fb0003"
_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--line)"}
_VARIABLES |= {f"#fa{i:02x}01": f"var(--s{i})" for i in range(SERIES)}
_STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "specproof", "text.parse_math": False,
    "font.size": 11, "font.family": "DejaVu Sans",
    "text.color": INK, "axes.labelcolor": MUTED, "xtick.color": MUTED, "ytick.color": MUTED,
    "axes.edgecolor": GRID, "grid.color": GRID, "grid.linewidth": 0.8, "axes.linewidth": 0.8,
    "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "xtick.major.size": 0, "ytick.major.size": 0, "xtick.labelsize": 10.5, "ytick.labelsize": 10.5,
    "lines.linewidth": 1.8, "lines.markersize": 6, "errorbar.capsize": 3,
}  # fmt: skip


@dataclass
class Panel:
    """One drawing: `slug` is its id on the page, `title` also what a screen reader says."""

    slug: str
    title: str
    svg: str = ""


def colour(series: int) -> str:
    """The marker colour that becomes `var(--s<series>)`."""
    return f"#fa{series_number(series):02x}01"


def series_number(series: int) -> int:
    """The number of a series' colour on the page: `var(--s<number>)`."""
    return series % SERIES


def marker(series: int) -> str:
    """A shape per series, so that colour is not the only difference; another one where colours come again."""
    return MARKERS[(series + series // SERIES) % SERIES]


def glyph(series: int) -> str:
    """The shape of a series as a letter, for legends."""
    return GLYPHS[(series + series // SERIES) % SERIES]


@contextmanager
def draw(panel: Panel, rows: int = 0) -> Iterator[Axes]:
    """Give the axes of `panel`, at least high enough for `rows` lines of text; on leaving, its SVG is stored in it."""
    height_in = max(HEIGHT_IN, FRAME_IN + ROW_IN * rows)
    with matplotlib.rc_context(_STYLE):
        figure, axes = pyplot.subplots(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained")
        try:
            yield axes
            panel.svg = _inline_svg(figure, panel)
        finally:
            pyplot.close(figure)


def _inline_svg(figure: Figure, panel: Panel) -> str:
    """The figure as an <svg> element: page colours and font, ids of its own, size from the page."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", svg)
    for marker_colour, variable in _VARIABLES.items():
        svg = svg.replace(marker_colour, variable)
    head = f'<svg class="panel" role="img" aria-labelledby="{panel.slug}-title" viewBox'
    return _lightened(re.sub(r"<svg [^>]*?viewBox", head, svg, count=1), panel.slug)


def _lightened(svg: str, slug: str) -> str:
    """The same drawing in a third of the bytes: tenths of a pixel, no line breaks, only the ids that are used."""
    svg = re.sub(r"<[^>]+>", lambda tag: re.sub(r"-?\d+\.\d+", _tenths, tag[0]), svg)  # not the texts between
    used = set(re.findall(r"""(?:href="#|url\(#)([^")]+)""", svg))
    svg = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", svg)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{slug}-", svg)
    return re.sub(r">\s+<", "><", re.sub(r"\s*\n\s*", " ", svg)).strip()


def _tenths(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def headroom(axes: Axes, low: float | None = None) -> None:
    """Leave space above the highest value; start the axis at `low` where given."""
    bottom, top = axes.get_ylim()
    start = bottom if low is None else low
    axes.set_ylim(start, top + 0.06 * (top - start))


def dashed(axes: Axes, at: float | None, upright: bool = False) -> None:
    """The dashed line of decoding without a draft."""
    if at is not None:
        (axes.axvline if upright else axes.axhline)(at, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
