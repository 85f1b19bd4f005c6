"""The long table: expected values are worked by hand from small counters."""

import csv

import pytest

from reports.collect import load_run
from reports.rows import make_rows, read_csv, write_csv
from tests.reports.synthetic import ALGORITHM, COMMIT, NAME, change

COLUMNS = "reproduction,variant,metric,benchmark,value,low,high,n,unit,scale,commit,settings_sha256"


def rows_of(results):
    """The table of the run."""
    return make_rows(load_run(results, NAME))


def put_steps(results, replies):
    """Give the draft's replies to word problems these accepted tokens per step, and counters that fit."""
    steps = [count for reply in replies for count in reply]
    positions = [sum(count > position for count in steps) for position in range(3)]
    figures = {
        "drafts": len(steps), "draft_tokens": 3 * len(steps), "accepted": sum(steps),
        "accepted_per_position": positions, "acceptance_length_pooled": 1 + sum(steps) / len(steps),
        "acceptance_rate_per_position": [count / len(steps) for count in positions],
    }  # fmt: skip
    place = results / "measured" / ALGORITHM
    change(place / "acceptance.json", lambda content: content["benchmarks"]["word_problems"].update(figures))


def test_the_csv_has_the_agreed_columns_first_and_provenance_in_every_row(results):
    write_csv(results / "results.csv", rows_of(results).rows)
    lines = (results / "results.csv").read_text().splitlines()
    assert lines[0].startswith(COLUMNS)
    rows = list(csv.DictReader(lines))
    assert {row["commit"] for row in rows} == {COMMIT}
    assert all(row["settings_sha256"] and row["machine"] and row["versions"] and row["dirty"] == "no" for row in rows)
    assert {row["scale"] for row in rows} == {"full"}


def test_the_csv_reads_back_as_it_was(results):
    rows = rows_of(results).rows
    write_csv(results / "results.csv", rows)
    read = read_csv(results / "results.csv")
    assert [(row.variant, row.metric, row.benchmark, row.note) for row in read] == [
        (row.variant, row.metric, row.benchmark, row.note) for row in rows
    ]
    assert [row.value for row in read] == [row.value and pytest.approx(row.value, rel=1e-5) for row in rows]


def test_every_metric_that_the_design_names_is_there(results):
    found = rows_of(results)
    for metric, benchmark in {
        "acceptance_length": "word_problems", "accuracy_strict": "word_problems", "accuracy_flexible": "word_problems",
        "output_match_exact": "", "output_match_faults": "", "speedup_c1": "word_problems",
        "tokens_per_s_c1": "word_problems", "parity_gap": "word_problems",
    }.items():  # fmt: skip
        assert found.value(ALGORITHM, metric, benchmark) is not None, metric
    assert found.value("none", "tokens_per_s_c1", "word_problems") == 27.4
    assert found.get("none", "acceptance_length", "word_problems") is None


def test_four_steps_accepting_0_1_2_3_of_3_have_length_2_5(results):
    put_steps(results, [[0, 1], [2, 3]])
    found = rows_of(results)
    assert found.value(ALGORITHM, "acceptance_length", "word_problems") == 2.5
    rates = [found.value(ALGORITHM, f"acceptance_rate_position_{k}", "word_problems") for k in (1, 2, 3)]
    assert rates == [3 / 4, 2 / 4, 1 / 4]


def test_the_speedup_is_the_ratio_of_token_rates_over_the_same_prompts(results):
    def requests(*latencies_s: float) -> list[dict]:
        return [{"id": n, "output_tokens": 10, "latency_s": seconds} for n, seconds in enumerate(latencies_s)]

    for variant, records in {"none": requests(2.0, 4.0, 9.9), ALGORITHM: requests(1.0, 2.0)}.items():
        change(
            results / "measured" / variant / "latency.json",
            lambda content, records=records: content["concurrency"]["1"].update(records=records),
        )
    assert rows_of(results).value(ALGORITHM, "speedup_c1", "word_problems") == pytest.approx(2.0)


def test_the_accuracy_difference_is_paired_by_problem(results):
    def problems(*right: int) -> list[dict]:
        return [{"id": f"p{n}", "strict": 0, "flexible": share} for n, share in enumerate(right)]

    for variant, scored in {"none": problems(1, 1, 0, 0), ALGORITHM: problems(1, 0, 0, 0)}.items():
        change(
            results / "measured" / variant / "accuracy.json",
            lambda content, scored=scored: content["tasks"]["word_problems"].update(per_problem=scored),
        )
    row = rows_of(results).get(ALGORITHM, "accuracy_flexible_difference", "word_problems")
    assert (row.value, row.n) == (-0.25, 4)
    assert row.low < 0 < row.high


def test_what_was_not_run_is_a_row_with_the_reason(results):
    found = rows_of(results)
    assert found.get(ALGORITHM, "accuracy_flexible", "gsm8k").note == "not run: data.folder holds no gsm8k/"
    assert found.get("ngram", "acceptance_length", "mt_bench").note == "not run: data.folder holds no mt_bench/"
    assert found.get("suffix", "acceptance_length").note == "not run: not part of this reproduction"
    assert all(row.value is None for row in found.not_run())


def test_a_baseline_that_was_asked_for_says_what_it_lacks(results, monkeypatch):
    monkeypatch.setattr("reports.rows.asked_for", lambda _: ["ngram", "suffix"])
    monkeypatch.setattr("reports.rows.missing", lambda name: f"package of {name} is not installed")
    assert rows_of(results).get("suffix", "acceptance_length").note == "not run: package of suffix is not installed"


def test_a_drafter_that_drafted_nothing_has_no_acceptance_length(results):
    empty = {"drafts": 0, "draft_tokens": 0, "accepted": 0, "accepted_per_position": [0, 0, 0],
             "acceptance_length_pooled": None, "low": None, "high": None, "acceptance_rate_per_position": [],
             "emitted_tokens_per_step": None, "accepted_past_end": None}  # fmt: skip
    change(
        results / "measured/ngram/acceptance.json",
        lambda content: content["benchmarks"]["instructions"].update(empty),
    )
    assert rows_of(results).get("ngram", "acceptance_length", "instructions").note == "not run: nothing was drafted"


def test_too_many_failed_requests_leave_no_speed_and_no_speedup(results):
    change(
        results / f"measured/{ALGORITHM}/latency.json",
        lambda content: content["concurrency"]["1"].update(failures=6, failure_share=0.3, invalid=True),
    )
    found = rows_of(results)
    assert found.get(ALGORITHM, "tokens_per_s_c1", "word_problems").note == "invalid: 6 of 20 requests failed"
    assert found.get(ALGORITHM, "speedup_c1", "word_problems") is None
    assert found.value(ALGORITHM, "speedup_c4", "word_problems") is not None


def test_an_invalid_base_leaves_no_speedup(results):
    change(results / "measured/none/latency.json", lambda content: content["concurrency"]["1"].update(invalid=True))
    assert rows_of(results).get(ALGORITHM, "speedup_c1", "word_problems").note.startswith("not run: the base")


def test_too_many_empty_replies_leave_no_accuracy(results):
    change(
        results / f"measured/{ALGORITHM}/accuracy.json",
        lambda content: content["tasks"]["word_problems"].update(empty=3, invalid=True),
    )
    row = rows_of(results).get(ALGORITHM, "accuracy_flexible", "word_problems")
    assert (row.value, row.note) == (None, "invalid: 0 failed and 3 empty of 40 replies")


def test_a_drafter_that_drafts_in_some_steps_counts_all_steps_where_all_count(results):
    change(
        results / "measured/ngram/acceptance.json",
        lambda content: content["benchmarks"]["word_problems"].update(drafts=450, drafted_step_share=450 / 658),
    )
    found = rows_of(results)
    counted = {metric: found.get("ngram", metric, "word_problems").n
               for metric in ("acceptance_length", "emitted_tokens_per_step", "drafted_step_share")}  # fmt: skip
    assert counted == {"acceptance_length": 450, "emitted_tokens_per_step": 658, "drafted_step_share": 658}
