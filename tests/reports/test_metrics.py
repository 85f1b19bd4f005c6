"""How values are written for people."""

import pytest

from reports.metrics import METRICS
from reports.wording import Name, base_name, described, duration, parse, place, spread, written


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("acceptance_length", 2.406, "2.41"),
        ("accuracy_flexible", 0.875, "87.5%"),
        ("accuracy_strict_difference", -0.0125, "−1.2"),
        ("accuracy_strict_difference", -0.0001, "0.0"),
        ("parity_gap", 0.021, "+0.021"),
        ("speedup_c8", 1.4166, "1.42×"),
        ("ttft_ms_p95_c1", 71.4, "71"),
        ("itl_ms_p50_c1", 8.36, "8.4"),
        ("output_match_faults", 0, "0"),
        ("training_tokens", 2_500_000, "2.50 M"),
        ("training_peak_memory_bytes", 3 * 2**30, "3.00 GiB"),
    ],
)
def test_a_value_is_written_with_its_unit(metric, value, text):
    assert written(metric, value) == text


def test_an_interval_has_its_unit_once():
    assert spread("accuracy_flexible", 0.8, 0.9) == "80.0 to 90.0%"
    assert spread("speedup_c1", 1.35, 1.5) == "1.35 to 1.50"
    assert spread("parity_gap", -0.03, 0.07) == "−0.030 to +0.070"
    assert spread("speedup_c1", None, None) == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.25, "4.2 s"), (59.7, "1 min 00 s"), (192.4, "3 min 12 s"), (7500, "2 h 05 min")]
)
def test_durations_are_rounded_before_they_are_split(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("metric", "name", "told"),
    [
        ("itl_ms_p50_c8", Name("itl_ms", "p50", "c", 8), "median, 8 requests at once"),
        ("speedup_k3", Name("speedup", "", "k", 3), "3 draft tokens per step"),
        ("speedup_c1", Name("speedup", "", "c", 1), "1 request at once"),
        ("ttft_ms_p95_r0.5", Name("ttft_ms", "p95", "r", 0.5), "95th percentile, 0.5 requests per second"),
        ("acceptance_rate_position_2", Name("acceptance_rate_position", "", "", 2), "draft position 2"),
        ("accuracy_strict_difference", Name("accuracy_difference"), "strict"),
        ("output_match_exact", Name("output_match_exact"), ""),
    ],
)
def test_a_name_is_taken_apart_and_told_in_words(metric, name, told):
    assert parse(metric) == name
    assert place(metric) == told


def test_a_metric_that_nobody_described_is_shown_under_its_own_name():
    assert described("novel_figure_c8").label == "novel figure"
    assert written("novel_figure_c8", 0.12345) == "0.1235"


def test_every_metric_is_described_in_full():
    for name, metric in METRICS.items():
        assert metric.label and metric.unit and metric.meaning.endswith("."), name
        assert metric.better in ("", "higher", "lower"), name
        assert metric.chart in ("", "benchmark", "axis") and (not metric.chart or metric.section), name


def test_percentile_level_and_position_are_no_part_of_a_metric():
    assert base_name("itl_ms_p50_c8") == "itl_ms"
    assert base_name("acceptance_rate_position_2") == "acceptance_rate_position"
    assert base_name("accuracy_flexible_difference") == "accuracy_difference"
    assert base_name("request_s_p95_c1") == "request_s"
