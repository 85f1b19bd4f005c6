"""Changes between two tables: worked by hand, and the laws that hold for all of them."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.changes import APART, BETTER, NO_INTERVAL, TOGETHER, WORSE, change, change_written
from reports.rows import Row


def row(metric="acceptance_length", value=2.0, low=None, high=None, **changes):
    """A row of a table."""
    base = {"reproduction": "toy", "variant": "a", "benchmark": "b", "n": 10, "unit": "", "scale": "full",
            "commit": "c", "settings_sha256": "s", "dirty": "no", "seed": "1", "machine": "m", "versions": "v",
            "finished_at": "2030-01-01", "note": ""}  # fmt: skip
    base |= {"metric": metric, "value": value, "low": low, "high": high}
    return Row(**(base | changes))


def test_the_interval_of_a_difference_adds_the_distances_in_squares():
    found = change(row(value=2.0, low=1.7, high=2.3), row(value=2.5, low=2.1, high=2.9))
    assert found.value == pytest.approx(0.5)
    assert found.low == pytest.approx(0.5 - 0.5)  # hypot(0.4, 0.3)
    assert found.high == pytest.approx(0.5 + 0.5)


def test_speeds_change_by_a_ratio():
    found = change(row("tokens_per_s_c1", 20.0, 19.0, 21.0), row("tokens_per_s_c1", 30.0, 29.0, 31.0))
    assert found.is_relative
    assert found.value == pytest.approx(0.5)
    assert found.low < 0.5 < found.high
    assert change_written("tokens_per_s_c1", found, found.value) == "+50.0%"


@pytest.mark.parametrize(
    ("metric", "a", "b", "verdict"),
    [
        ("acceptance_length", (2.0, 1.9, 2.1), (2.5, 2.4, 2.6), BETTER),
        ("acceptance_length", (2.5, 2.4, 2.6), (2.0, 1.9, 2.1), WORSE),
        ("acceptance_length", (2.0, 1.9, 2.1), (2.05, 1.9, 2.2), TOGETHER),
        ("acceptance_length", (2.0, None, None), (2.5, 2.4, 2.6), NO_INTERVAL),
        ("itl_ms_p50_c1", (20.0, 19.0, 21.0), (30.0, 29.0, 31.0), WORSE),
        ("itl_ms_p50_c1", (30.0, 29.0, 31.0), (20.0, 19.0, 21.0), BETTER),
        ("parity_gap", (0.0, -0.01, 0.01), (0.1, 0.09, 0.11), APART),
    ],
)
def test_the_verdict_follows_from_the_interval_and_from_which_way_is_better(metric, a, b, verdict):
    assert change(row(metric, *a), row(metric, *b)).verdict == verdict


@pytest.mark.parametrize(
    ("metric", "other", "said"),
    [
        ("acceptance_length", {"scale": "smoke"}, "not judged: smoke run against full run"),
        ("acceptance_length", {"reproduction": "more"}, "not judged: another verifier"),
        ("tokens_per_s_c1", {"machine": "n"}, "not judged: another machine"),
        ("acceptance_length", {"machine": "n"}, BETTER),
    ],
)
def test_what_cannot_be_compared_is_shown_and_not_judged(metric, other, said):
    assert change(row(metric, 2.0, 1.9, 2.1), row(metric, 2.5, 2.4, 2.6, **other)).verdict == said


figures = st.tuples(*[st.floats(0.1, 100, allow_nan=False)] * 3).map(sorted)


@given(figures, figures, st.sampled_from(["acceptance_length", "tokens_per_s_c1"]))
@settings(max_examples=60, deadline=None)
def test_the_change_back_is_the_change_turned_round(a, b, metric):
    one, two = (row(metric, middle, low, high) for low, middle, high in (a, b))
    there, back = change(one, two), change(two, one)
    if there.is_relative:
        pairs = [(1 + there.value, 1 / (1 + back.value)), (1 + there.low, 1 / (1 + back.high))]
    else:
        pairs = [(there.value, -back.value), (there.low, -back.high)]
    assert all(math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-9) for x, y in pairs)
    assert there.low - 1e-9 <= there.value <= there.high + 1e-9
    turned = {BETTER: WORSE, WORSE: BETTER}
    assert back.verdict == turned.get(there.verdict, there.verdict)


@given(figures)
@settings(max_examples=40, deadline=None)
def test_a_figure_is_never_told_apart_from_itself(a):
    low, middle, high = a
    assert change(row(value=middle, low=low, high=high), row(value=middle, low=low, high=high)).verdict == TOGETHER


def test_the_verdict_is_on_the_interval_as_it_is_printed():
    found = change(row("tokens_per_s_c1", 100.0, 99.0, 101.0), row("tokens_per_s_c1", 98.58, 97.6, 99.58))
    assert change_written("tokens_per_s_c1", found, found.high) == "0.0%"
    assert found.high < 0
    assert found.verdict == TOGETHER


def test_a_change_is_written_in_its_unit():
    points = change(row("accuracy_flexible", 0.5, 0.4, 0.6), row("accuracy_flexible", 0.48, 0.4, 0.6))
    assert change_written("accuracy_flexible", points, points.value) == "−2.0"
    tokens = change(row(value=2.0), row(value=2.1))
    assert change_written("acceptance_length", tokens, tokens.value) == "+0.100"
