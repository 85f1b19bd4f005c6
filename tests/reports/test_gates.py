"""Verdicts of the gates, and the exit code that follows."""

import pytest

from harness.files import write_json
from reports.__main__ import report_main
from reports.collect import load_run
from reports.gates import MET, MISSED, check_gates
from reports.rows import make_rows
from tests.reports.synthetic import ALGORITHM, NAME, change, difference, provenance


def verdicts(results):
    """Verdict by (variant, metric name, benchmark)."""
    run = load_run(results, NAME)
    return {(gate.variant, gate.name, gate.benchmark): gate for gate in check_gates(run, make_rows(run))}


def arguments(results):
    """The command line of the report."""
    return ["--results", str(results), "--reproduction", NAME, "--out", str(results / "report")]


def edit(results, name, path, value):
    """Set one value deep in a JSON file."""

    def put(content: dict) -> None:
        *parents, last = path
        for key in parents:
            content = content[key]
        content[last] = value

    change(results / name, put)


@pytest.mark.usefixtures("undrawn")
def test_a_good_run_meets_every_gate_and_exits_0(results):
    assert {gate.verdict for gate in verdicts(results).values()} == {MET}
    assert report_main(arguments(results)) == 0


@pytest.mark.usefixtures("undrawn")
def test_a_missed_gate_exits_1_and_the_report_is_written(results):
    edit(
        results,
        f"measured/{ALGORITHM}/acceptance.json",
        ("benchmarks", "word_problems", "acceptance_length_pooled"),
        1.9,
    )
    assert report_main(arguments(results)) == 1
    for name in ("report/report.html", "report/report.md", "results.csv", "provenance.json"):
        assert (results / name).exists(), name
    assert "missed" in (results / "report/report.md").read_text()


CASES = [
    ("Acceptance length", "word_problems", f"measured/{ALGORITHM}/acceptance.json",
     ("benchmarks", "word_problems", "acceptance_length_pooled"), {1.99: MISSED, 2.0: MET}),
    ("Output match, faults", "", f"match/{ALGORITHM}.json", ("faults",), {0: MET, 1: MISSED}),
    ("Parity gap", "instructions", f"parity/{ALGORITHM}.json", ("benchmarks", "instructions", "within"),
     {True: MET, False: MISSED}),
]  # fmt: skip


@pytest.mark.parametrize(("metric", "benchmark", "file", "path", "expected"), CASES)
def test_a_gate_turns_at_its_limit(results, metric, benchmark, file, path, expected):
    for value, verdict in expected.items():
        edit(results, file, path, value)
        assert verdicts(results)[ALGORITHM, metric, benchmark].verdict == verdict, value


@pytest.mark.parametrize(("factor", "verdict"), [(1.31, MET), (1.29, MISSED)])
def test_the_speedup_gate_compares_the_ratio(results, factor, verdict):
    for variant, seconds in {"none": factor, ALGORITHM: 1.0}.items():
        records = [{"id": n, "output_tokens": 10, "latency_s": seconds} for n in range(5)]
        edit(results, f"measured/{variant}/latency.json", ("concurrency", "1", "records"), records)
    assert verdicts(results)[ALGORITHM, "Speed-up at concurrency 1", "word_problems"].verdict == verdict


@pytest.mark.parametrize(
    ("lost", "verdict"),
    [
        (2, MET),
        (3, MISSED),
        (12, MISSED),
    ],  # 2 of 40 are the 5 points allowed; 12 lie beyond the paired interval as well
)
def test_the_accuracy_gate_allows_a_small_drop_only(results, lost, verdict):
    def score(right: int) -> list[dict]:
        return [{"id": n, "strict": 0, "flexible": int(n < right)} for n in range(40)]

    for variant, right in {"none": 30, ALGORITHM: 30 - lost}.items():
        edit(results, f"measured/{variant}/accuracy.json", ("tasks", "word_problems", "per_problem"), score(right))
    assert verdicts(results)[ALGORITHM, "Accuracy against the base", "word_problems"].verdict == verdict


def test_a_gate_on_something_that_was_not_run_is_missed(results):
    edit(results, f"measured/{ALGORITHM}/latency.json", ("concurrency",), {})
    gate = verdicts(results)[ALGORITHM, "Speed-up at concurrency 1", "word_problems"]
    assert (gate.verdict, gate.found) == (MISSED, "not run: no such measurement")


def test_an_invalid_accuracy_misses_its_gate_with_the_reason(results):
    edit(results, f"measured/{ALGORITHM}/accuracy.json", ("tasks", "word_problems", "invalid"), True)
    gates = verdicts(results)
    gate = gates[ALGORITHM, "Accuracy against the base", "word_problems"]
    assert gate.verdict == MISSED
    assert gate.found.startswith("invalid: ")


def test_faults_are_counted_against_every_variant(results):
    change(results / "match/ngram.json", lambda content: content["differences"].append(difference(40, 3.0, "fault")))
    edit(results, "match/ngram.json", ("faults",), 1)
    gates = verdicts(results)
    assert gates["ngram", "Output match, faults", ""].verdict == MISSED
    assert gates[ALGORITHM, "Output match, faults", ""].verdict == MET


def test_a_trap_that_was_named_misses_the_parity_gate(results):
    edit(results, f"parity/{ALGORITHM}.json", ("diagnosis",), {"trap": "layer-ids", "said": "3.9 with others"})
    assert verdicts(results)[ALGORITHM, "Parity gap", "instructions"].verdict == MISSED


@pytest.mark.parametrize(("p_value", "verdict"), [(0.0009, MISSED), (0.001, MET)])
def test_a_sampler_that_changes_the_distribution_misses_its_gate(results, p_value, verdict):
    figures = [{"metric": "sampling_p", "value": p_value, "n": 2048}]
    write_json(results / f"lossless/{ALGORITHM}.json", {"figures": figures, "provenance": provenance()})
    assert verdicts(results)[ALGORITHM, "Sampling, p-value", ""].verdict == verdict


@pytest.mark.parametrize(("high", "said"), [(0.05, ""), (0.052, "not failed")])
def test_a_parity_interval_that_reaches_beyond_the_margin_is_called_not_failed(results, high, said):
    for key, value in {"margin": 0.05, "low": 0.004, "high": high}.items():
        edit(results, f"parity/{ALGORITHM}.json", ("benchmarks", "instructions", key), value)
    gate = verdicts(results)[ALGORITHM, "Parity gap", "instructions"]
    assert (gate.verdict, gate.said) == (MET, said)
    assert (
        gate.wanted == "fails when the whole interval lies more than 0.05 from zero, or when "
        "served far below validation"
    )
