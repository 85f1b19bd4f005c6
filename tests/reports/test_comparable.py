"""Rows and gates that say whether a figure may be compared: the machine, failures, published gates."""

from pathlib import Path

import pytest
import yaml

from reports.cautions import cautions
from reports.cells import figure
from reports.collect import load_run
from reports.gates import MET, MISSED, check_gates
from reports.rows import make_rows
from tests.reports.synthetic import ALGORITHM, NAME, change


def rows_of(results):
    return make_rows(load_run(results, NAME))


def put_machine(results, variant, before_ms, after_ms, others=0.01):
    """What the machine did beside both loads of a variant."""
    machine = {"kernel_ms": {"before": before_ms, "after": after_ms}, "others_cpu_share": others}

    def edit(content):
        for load in content["concurrency"].values():
            load["machine"] = machine

    change(results / f"measured/{variant}/latency.json", edit)


def set_gates(**gates):
    path = Path("reproductions") / NAME / "reproduction.yaml"
    content = yaml.safe_load(path.read_text())
    output_match = gates.pop("output_match", None)
    content["evaluate"]["output_match"] = output_match
    content["gates"] = gates
    path.write_text(yaml.safe_dump(content))


def gates_of(results, name):
    run = load_run(results, NAME)
    return {gate.variant: gate for gate in check_gates(run, make_rows(run)) if gate.name == name}


def test_a_slower_machine_widens_the_speedup_by_what_it_was_slower(results):
    plain = rows_of(results).get(ALGORITHM, "speedup_c1", "word_problems")
    put_machine(results, "none", 20.0, 20.0)
    put_machine(results, ALGORITHM, 21.0, 23.0)
    found = rows_of(results)
    assert found.value(ALGORITHM, "machine_drift_c1", "word_problems") == pytest.approx(1.1)
    row = found.get(ALGORITHM, "speedup_c1", "word_problems")
    # The farthest of 21/20 and 23/20 widens it.
    assert (row.value, row.low, row.high) == pytest.approx((plain.value, plain.low / 1.15, plain.high * 1.15))
    assert row.note == ""


@pytest.mark.parametrize("draft_ms", [25.0, 16.0])
def test_beyond_the_limit_the_speedup_is_not_comparable_and_its_gate_says_so(results, draft_ms):
    put_machine(results, "none", 20.0, 20.0)
    put_machine(results, ALGORITHM, draft_ms, draft_ms)
    row = rows_of(results).get(ALGORITHM, "speedup_c1", "word_problems")
    assert (
        row.note == f"not comparable: a fixed piece of work took {draft_ms / 20:.2f} times as long as beside the base"
    )
    assert figure(row).doubt == "not comparable"
    assert "×, not comparable: " in gates_of(results, "Speed-up at concurrency 1")[ALGORITHM].found


@pytest.mark.parametrize(("base", "draft"), [(0.3, 0.01), (0.01, 0.3)])
def test_other_programs_on_either_side_spoil_the_comparison(results, base, draft):
    put_machine(results, "none", 20.0, 20.0, base)
    put_machine(results, ALGORITHM, 20.0, 20.0, draft)
    found = rows_of(results)
    said = "not comparable: other programs took 30% of the cores meanwhile"
    assert found.get(ALGORITHM, "speedup_c1", "word_problems").note == said
    assert found.get(ALGORITHM, "tokens_per_s_c1", "word_problems").note == (said if draft > base else "")
    assert found.value("none", "others_cpu_share_c1", "word_problems") == base


def test_code_that_stands_in_for_missing_kernels_is_named(results):
    def edit(content):
        content["settings"] = {"support": ["second model runner on Triton's interpreter"]}

    change(results / f"measured/{ALGORITHM}/server.json", edit)
    found = rows_of(results)
    for metric in ("tokens_per_s_c1", "speedup_c1", "tokens_per_s_c4"):
        assert found.get(ALGORITHM, metric, "word_problems").note.startswith(
            "not comparable: the CPU build has no Triton"
        )
    assert found.get("ngram", "speedup_c1", "word_problems").note == ""
    said = cautions(load_run(results, NAME), found, [])
    assert any(
        line.startswith(f"Speeds of {ALGORITHM} are not comparable: the CPU build has no Triton") for line in said
    )


def test_a_load_under_a_rate_of_requests_has_its_own_rows_and_no_speedup(results):
    for variant in ("none", ALGORITHM):
        change(
            results / f"measured/{variant}/latency.json",
            lambda content: content.update(rates={"0.5": content["concurrency"]["1"]}, checks_s=61.5),
        )
    found = rows_of(results)
    assert found.value(ALGORITHM, "tokens_per_s_r0.5", "word_problems") is not None
    assert found.value(ALGORITHM, "ttft_ms_p95_r0.5", "word_problems") is not None
    assert found.get(ALGORITHM, "speedup_r0.5", "word_problems") is None
    assert found.value(ALGORITHM, "checks_seconds") == 61.5


def test_failures_and_reply_lengths_stand_beside_every_load(results):
    found = rows_of(results)
    assert found.value(ALGORITHM, "failure_share_c4", "word_problems") == 0.0
    assert found.value(ALGORITHM, "output_tokens_per_request_c4", "word_problems") == 64.0


def test_replies_without_an_answer_stand_beside_every_accuracy(results):
    change(
        results / f"measured/{ALGORITHM}/accuracy.json",
        lambda content: content["tasks"]["word_problems"].update(thinking_only=2, empty=1, failed=3),
    )
    found = rows_of(results)
    counts = [
        found.value(ALGORITHM, f"replies_{kind}", "word_problems") for kind in ("thinking_only", "empty", "failed")
    ]
    assert counts == [2, 1, 3]
    assert found.value(ALGORITHM, "replies_cut", "word_problems") == 1
    assert found.get(ALGORITHM, "replies_cut", "gsm8k") is None


def test_categories_and_the_mean_of_prompts_are_rows_of_their_own(results):
    parts = {
        "mean_of_prompts": {"acceptance_length_mean_of_prompts": 2.9, "low": 2.7, "high": 3.1, "prompts": 40},
        "categories": {"give": {"acceptance_length_pooled": 3.5, "low": 3.0, "high": 4.0, "drafts": 60, "prompts": 4}},
    }
    change(
        results / f"measured/{ALGORITHM}/acceptance.json",
        lambda content: content["benchmarks"]["word_problems"].update(parts),
    )
    found = rows_of(results)
    assert found.value(ALGORITHM, "acceptance_length", "word_problems/give") == 3.5
    assert found.measured("acceptance_length") == ["word_problems", "instructions"]
    assert found.value(ALGORITHM, "acceptance_length_mean_of_prompts", "word_problems") == 2.9
    assert found.value(ALGORITHM, "accepted_past_end", "word_problems") == 8


@pytest.mark.parametrize(("extraction", "least", "verdict"), [
    ("flexible", 0.72, MET), ("flexible", 0.73, MISSED), ("strict", 0.42, MET), ("strict", 0.43, MISSED),
])  # fmt: skip
def test_the_published_accuracy_gate_takes_the_named_extraction(results, extraction, least, verdict):
    # 29 of 40 right by the last number, 17 of 40 in the demanded form.
    set_gates(accuracy_extraction=extraction, accuracy_min={"word_problems": least})
    gate = gates_of(results, f"Accuracy, {extraction}")[ALGORITHM]
    assert (gate.verdict, gate.benchmark) == (verdict, "word_problems")


def test_an_accuracy_gate_on_a_task_that_was_not_run_is_missed_with_the_reason(results):
    set_gates(accuracy_min={"gsm8k": 0.1})
    gate = gates_of(results, "Accuracy, flexible")[ALGORITHM]
    assert (gate.verdict, gate.found) == (MISSED, "not run: data.folder holds no gsm8k/")


@pytest.mark.parametrize(("least", "verdict"), [(0.66, MET), (0.67, MISSED)])
def test_the_published_match_gate_counts_first_tokens_where_they_are_named(results, least, verdict):
    start = {"exact": 66, "total": 100, "exact_share": 0.66, "low": 0.56, "high": 0.75, "first_tokens": 10}
    for variant in ("ngram", ALGORITHM):
        change(results / f"match/{variant}.json", lambda content: content.update(start=start))
    set_gates(output_match_exact_min=least, output_match={"sources": ["instructions"], "first_tokens": 10})
    assert gates_of(results, "Output match, first tokens")[ALGORITHM].verdict == verdict
    assert rows_of(results).value(ALGORITHM, "output_match_start") == 0.66


def test_without_named_sources_the_match_gate_takes_all_replies(results):
    set_gates(output_match_exact_min=0.95)  # 72 of 80
    assert gates_of(results, "Output match, exact")[ALGORITHM].verdict == MISSED
    set_gates(output_match_exact_min=0.9)
    assert gates_of(results, "Output match, exact")[ALGORITHM].verdict == MET
