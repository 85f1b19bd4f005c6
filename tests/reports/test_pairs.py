"""Two variants timed on the same prompts: the direct ratio, and what the machine did in between."""

import pytest

from reports.collect import load_run
from reports.pairs import against, drift
from reports.rows import make_rows
from tests.reports.synthetic import ALGORITHM, NAME, change


def put_load(results, variant, seconds, kernel_ms=None):
    """Four requests of 10 tokens that took `seconds` each, and what the machine took for its own piece of work."""
    records = [{"id": n, "output_tokens": 10, "latency_s": seconds} for n in range(4)]
    machine = kernel_ms and {"kernel_ms": kernel_ms, "others_cpu_share": 0.0}
    change(
        results / f"measured/{variant}/latency.json",
        lambda content: content["concurrency"]["1"].update(records=records, machine=machine),
    )


def loads(results):
    """(n-gram's load, the draft's) at one request at a time, and the settings."""
    run = load_run(results, NAME)
    return *(run.latency[v].concurrency["1"] for v in ("ngram", ALGORITHM)), run.reproduction.evaluate


def test_the_ratio_is_of_token_rates_on_the_same_prompts(results):
    put_load(results, "ngram", 3.0)
    put_load(results, ALGORITHM, 2.0)
    base, load, evaluate = loads(results)
    ratio = against(base, load, evaluate)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))
    assert drift(base, load) is None


def test_the_interval_is_widened_by_the_farthest_change_of_the_machine(results):
    put_load(results, "ngram", 3.0, {"before": 5.0, "after": 5.0})
    put_load(results, ALGORITHM, 2.0, {"before": 5.5, "after": 6.0})
    base, load, evaluate = loads(results)
    ratio = against(base, load, evaluate)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.5, 1.5 / 1.2, 1.5 * 1.2))
    assert drift(base, load) == pytest.approx(1.15)


def test_the_faster_of_two_drafts_has_the_row_whichever_comes_first(results):
    put_load(results, "ngram", 2.0)
    put_load(results, ALGORITHM, 3.0)
    found = make_rows(load_run(results, NAME))
    assert found.value("ngram", "draft_speed_ratio_c1", f"word_problems/over {ALGORITHM}") == pytest.approx(1.5)
    assert found.get(ALGORITHM, "draft_speed_ratio_c1", "word_problems/over ngram") is None


def test_a_draft_whose_speed_may_not_be_compared_has_no_ratio(results):
    change(
        results / f"measured/{ALGORITHM}/server.json",
        lambda content: content["settings"].update(support=["second model runner on Triton's interpreter"]),
    )
    rows = make_rows(load_run(results, NAME)).rows
    assert [row for row in rows if row.base == "draft_speed_ratio"] == []
