"""A metric that is described with a section and a chart is drawn by itself, over what its name or benchmark says."""

import re
from dataclasses import replace

import pytest

from reports.charts import panels
from reports.collect import load_run
from reports.figures import all_figures, of_section, series_of
from reports.metrics import METRICS, Metric
from reports.rows import Results, make_rows
from tests.reports.synthetic import ALGORITHM, NAME, write_extra
from tests.reports.test_changes import row


@pytest.fixture
def novel(monkeypatch):
    """A metric that this version does not have."""
    monkeypatch.setitem(METRICS, "novel", Metric("Novel", "ms", "A new figure.", section="speed", chart="axis"))
    return "novel"


def drawn(rows, section):
    """Titles by slug."""
    results = Results(rows)
    return {panel.slug: panel.title for panel in panels(results, series_of(results), section)}


def test_a_new_metric_is_drawn_over_the_axis_in_its_name(novel):
    rows = [row(f"{novel}_k{k}", 10.0 + k, 9.0 + k, 11.0 + k, variant=v) for k in (1, 3, 5) for v in ("a", "b")]
    assert drawn(rows, "speed") == {"fig-novel-k-b": "Novel, ms by draft tokens per step, b"}
    assert drawn(rows, "acceptance") == {}


def test_rates_of_requests_have_a_panel_beside_that_of_concurrency(novel):
    rows = [row(f"{novel}_{at}", 10.0) for at in ("c1", "c8", "r0.5", "r2")]
    assert drawn(rows, "speed") == {
        "fig-novel-c-b": "Novel, ms, b",
        "fig-novel-r-b": "Novel, ms by requests per second, b",
    }


def test_points_of_another_metric_stand_beside_a_line(novel, monkeypatch):
    monkeypatch.setitem(METRICS, "seen", Metric("Seen", "ms", "What was seen."))
    monkeypatch.setitem(METRICS, novel, replace(METRICS[novel], beside="seen"))
    rows = [row(f"{novel}_k{k}", 10.0 * k) for k in (1, 2, 3)] + [row("seen_k2", 19.0, 18.0, 20.0)]
    assert drawn(rows, "speed") == {"fig-novel-k-b": "Novel, ms by draft tokens per step, seen (hollow), b"}


def test_percentiles_share_a_panel_and_other_benchmarks_have_their_own(novel):
    names = [f"{novel}_{percentile}_c{level}" for percentile in ("p50", "p95") for level in (1, 8)]
    rows = [row(name, 10.0, benchmark=benchmark) for name in names for benchmark in "xy"]
    assert list(drawn(rows, "speed").values()) == [f"Novel, ms, median and 95th percentile (dotted), {b}" for b in "xy"]


def test_parts_of_a_benchmark_are_drawn_by_category():
    parts = ("", "/short", "/a longer name of a part")
    rows = [row(value=2.0, low=1.9, high=2.1, benchmark=f"set{part}") for part in parts]
    assert drawn(rows, "acceptance") == {
        "fig-acceptance-length": "Acceptance length",
        "fig-acceptance-length-category-set": "Acceptance length by category, set",
    }


def test_a_drawing_is_light_and_keeps_what_its_labels_say(novel):
    rows = [row(f"{novel}_k{k}", 0.05 * k) for k in (1, 2, 3)]
    results = Results(rows)
    (panel,) = [each for each in panels(results, series_of(results), "speed") if "novel" in each.slug]
    assert ">0.125</text>" in panel.svg
    assert not re.search(r'\sd="[^"]*\d\.\d\d', panel.svg)
    assert "\n" not in panel.svg
    assert len(panel.svg) < 12_000


def test_what_has_no_value_is_not_drawn(novel):
    assert drawn([row(f"{novel}_k3", None, note="not run: no time")], "speed") == {}


def test_more_than_eight_variants_still_look_different():
    results = Results([row(value=2.0, variant=f"v{n}") for n in range(12)])
    group = of_section(results, "acceptance")
    looks = {(glyph, number) for _, glyph, number in group.legend}
    assert len(looks) == 12


def test_the_figures_of_an_optional_check_reach_the_page(results, novel):
    figures = [{"metric": f"{novel}_k{k}", "benchmark": "word_problems", "value": 10.0 * k} for k in (1, 3)]
    write_extra(results, f"speed/{ALGORITHM}.json", figures)
    run = load_run(results, NAME)
    slugs = [panel.slug for group in all_figures(run, make_rows(run))["speed"] for panel in group.panels]
    assert "fig-novel-k-word-problems" in slugs


def test_two_panels_never_share_an_id(results):
    run = load_run(results, NAME)
    groups = [group for found in all_figures(run, make_rows(run)).values() for group in found]
    slugs = [panel.slug for group in groups for panel in group.panels]
    assert len(slugs) == len(set(slugs))
