"""Verdicts of the gate on small runs made by hand: regressions, what cannot be judged, what is not compared."""

from typing import Any

import pytest

from reports.baseline import Snapshot, Variant
from reports.gate_verdicts import (
    BETTER,
    CANNOT,
    PASS,
    REGRESSION,
    SKIPPED,
    Tolerances,
    Verdict,
    judge,
    outcome,
)

SOURCES = ("word_problems", "instructions")
PROMPTS = {source: {f"{source}-{n}": f"hash {n}" for n in range(12)} for source in SOURCES}
HARDWARE = {"cpu": "Example CPU", "cores": 2, "memory_gib": 23.0, "gpus": []}


def variant(**changes: Any) -> Variant:
    """Twelve prompts of each source with 20 steps: 10 accept nothing, 6 one, 4 both of 2 drafts; 14 accepted in all."""
    usual = {
        "num_speculative_tokens": 2,
        "draft_sha256": "a1",
        "steps": {source: {key: [10, 6, 4] for key in keys} for source, keys in PROMPTS.items()},
        "accuracy": {"word_problems": {f"p{n}": [n % 2, 1] for n in range(40)}},
        "faults": 0,
        "latency": {"1": {f"r{n}": [40 + n, 1.0 + n / 100] for n in range(12)}},
    }
    return Variant(**usual | changes)


def base(**changes: Any) -> Variant:
    return variant(
        **{"num_speculative_tokens": 0, "draft_sha256": None, "steps": {}, "faults": None,
           "latency": {"1": {f"r{n}": [40 + n, 2.0] for n in range(12)}}} | changes
    )  # fmt: skip


def run(draft: Variant | None = None, none: Variant | None = None, **changes: Any) -> Snapshot:
    usual = {
        "reproduction": "toy", "scale": "smoke", "verifier": "sha", "prompts": PROMPTS, "request": {"temperature": 0.0},
        "commit": "0123456789abcdef", "dirty": False, "finished_at": "2030-01-02T03:04:05+00:00",
        "versions": {"vllm": "0.32.0"}, "hardware": HARDWARE, "settings_sha256": "ab",
        "variants": {"none": none or base(), "draft": draft or variant()},
    }  # fmt: skip
    return Snapshot(**usual | changes)


def verdicts(after: Snapshot, before: Snapshot | None = None) -> dict[tuple[str, str, str], Verdict]:
    return {(each.variant, each.metric, each.benchmark): each for each in judge(before or run(), after)}


def lost(source: str, histogram: list[int], steps: dict | None = None) -> dict:
    """The steps of every prompt of `source` replaced."""
    return (steps or variant().steps) | {source: dict.fromkeys(PROMPTS[source], histogram)}


def test_the_same_run_passes_everywhere():
    found = judge(run(), run())
    assert {each.verdict for each in found} == {PASS} and outcome(found) == PASS
    assert {each.metric for each in found} == {
        "acceptance_length", "acceptance_rate_position_1", "acceptance_rate_position_2", "accuracy_strict",
        "accuracy_flexible", "output_match_faults", "speedup_c1",
    }  # fmt: skip


def test_a_loss_of_length_is_a_regression_and_the_positions_say_where():
    found = verdicts(run(variant(steps=lost("instructions", [10, 9, 1]))))
    length = found["draft", "acceptance_length", "instructions"]
    assert (length.verdict, length.before, length.after) == (REGRESSION, 1.7, 1.55)
    assert length.change == pytest.approx((11 - 14) / 14), "accepted tokens per step"
    assert found["draft", "acceptance_rate_position_1", "instructions"].verdict == PASS
    assert found["draft", "acceptance_rate_position_2", "instructions"].verdict == REGRESSION
    assert found["draft", "acceptance_length", "word_problems"].verdict == PASS
    assert outcome(list(found.values())) == REGRESSION


def test_a_gain_is_told_and_passes():
    found = verdicts(run(variant(steps=lost("instructions", [8, 6, 6]))))
    assert found["draft", "acceptance_length", "instructions"].verdict == BETTER
    assert outcome(list(found.values())) == PASS


def test_a_total_loss_is_a_regression():
    steps = lost("instructions", [34, 0, 0], lost("word_problems", [34, 0, 0]))
    length = verdicts(run(variant(steps=steps)))["draft", "acceptance_length", "all prompts"]
    assert (length.verdict, length.after, length.change) == (REGRESSION, 1.0, -1.0)


def test_a_loss_smaller_than_the_tolerance_is_none_however_sure():
    steps = {source: {key: [100, 60, 40] for key in keys} for source, keys in PROMPTS.items()}
    less = {source: {key: [102, 58, 40] for key in keys} for source, keys in PROMPTS.items()}
    before, after = run(variant(steps=steps)), run(variant(steps=less))
    assert all(each.verdict == PASS for each in judge(before, after))
    strict = judge(before, after, Tolerances(acceptance=0.01))
    assert REGRESSION in {each.verdict for each in strict}


def test_a_retrained_draft_is_said_to_be_one_and_may_lose_a_little_more():
    steps = {source: {key: [104, 56, 40] for key in keys} for source, keys in PROMPTS.items()}
    before = run(variant(steps={source: {key: [100, 60, 40] for key in keys} for source, keys in PROMPTS.items()}))
    same, other = (
        judge(before, run(variant(steps=steps, draft_sha256=sha)), Tolerances(0.02, 0.04)) for sha in ("a1", "b2")
    )
    assert outcome(same) == REGRESSION and outcome(other) == PASS
    assert "retrained draft" in {each.note for each in other}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"verifier": "other"}, "verifier was sha, now other"),
        ({"scale": "full"}, "scale was smoke, now full"),
        ({"reproduction": "toy2"}, "reproduction was toy, now toy2"),
        ({"request": {"temperature": 1.0}}, "request was {'temperature': 0.0}, now {'temperature': 1.0}"),
    ],
)
def test_another_verifier_scale_or_request_cannot_be_judged(change: dict, said: str):
    found = judge(run(), run(**change))
    assert [(each.verdict, each.note) for each in found] == [(CANNOT, said)] and outcome(found) == CANNOT


def test_other_prompts_under_the_same_ids_cannot_be_judged():
    prompts = PROMPTS | {"instructions": dict.fromkeys(PROMPTS["instructions"], "other")}
    found = verdicts(run(prompts=prompts))
    assert found["draft", "acceptance_length", "instructions"].verdict == CANNOT
    assert found["draft", "acceptance_length", "word_problems"].verdict == PASS
    assert outcome(list(found.values())) == CANNOT


def test_more_prompts_than_the_baseline_has_are_left_out_and_fewer_cannot_be_judged():
    steps = variant().steps
    more = steps | {"instructions": steps["instructions"] | {"new": [0, 0, 99]}}
    assert verdicts(run(variant(steps=more)))["draft", "acceptance_length", "instructions"].n == 12
    fewer = steps | {"instructions": {key: [10, 6, 4] for key in list(PROMPTS["instructions"])[:10]}}
    found = verdicts(run(variant(steps=fewer)))["draft", "acceptance_length", "instructions"]
    assert (found.verdict, found.note) == (CANNOT, "10 of the baseline's 12 prompts were answered")


def test_another_number_of_draft_tokens_cannot_be_judged():
    found = verdicts(run(variant(num_speculative_tokens=3)))["draft", "acceptance_length", ""]
    assert (found.verdict, found.note) == (CANNOT, "2 draft tokens a step before, 3 now")


def test_a_variant_that_is_gone_cannot_be_judged_and_a_new_one_is_not_compared():
    gone = judge(run(), run(variants={"none": base()}))
    assert [each.note for each in gone if each.variant == "draft"] == ["not measured any more"]
    assert outcome(gone) == CANNOT
    more = judge(run(), run(variants={"none": base(), "draft": variant(), "young": variant()}))
    assert [each.verdict for each in more if each.variant == "young"] == [SKIPPED] and outcome(more) == PASS


def test_nothing_drafted_cannot_be_judged():
    empty = {source: {key: [0, 0, 0] for key in keys} for source, keys in PROMPTS.items()}
    found = verdicts(run(variant(steps=empty)))["draft", "acceptance_length", "all prompts"]
    assert (found.verdict, found.note) == (CANNOT, "nothing was drafted")


def test_what_never_drafted_is_not_compared():
    empty = {"instructions": {key: [0, 0, 0] for key in PROMPTS["instructions"]}}
    before = run(variant(steps=variant().steps | empty))
    found = verdicts(before, before)
    assert found["draft", "acceptance_length", "instructions"].verdict == SKIPPED
    assert found["draft", "acceptance_length", "all prompts"].verdict == PASS


def test_a_handful_of_prompts_is_too_few_for_a_verdict_of_their_own():
    keys = list(PROMPTS["instructions"])[:4]
    few = {"instructions": {key: [10, 6, 4] for key in keys}}
    before = run(variant(steps=variant().steps | few))
    after = run(variant(steps=variant().steps | {"instructions": {key: [14, 2, 4] for key in keys}}))
    found = verdicts(after, before)["draft", "acceptance_length", "instructions"]
    assert (found.verdict, found.note) == (SKIPPED, "too few in common for a verdict")
    alone = {"num_speculative_tokens": 2, "steps": few}
    found = judge(
        run(variant(**alone)), run(variant(**alone | {"steps": {"instructions": {key: [14, 2, 4] for key in keys}}}))
    )
    assert outcome(found) == CANNOT


def test_an_invalid_score_cannot_be_judged_and_says_why():
    absent = {"accuracy word_problems": "invalid: 3 failed and 0 empty of 40 replies"}
    found = verdicts(run(variant(accuracy={}, absent=absent)))["draft", "accuracy_flexible", "word_problems"]
    assert (found.verdict, found.note) == (CANNOT, absent["accuracy word_problems"])


def test_accuracy_is_judged_in_pairs_for_the_base_too():
    worse = {"word_problems": {f"p{n}": [n % 2, int(n >= 25)] for n in range(40)}}
    found = verdicts(run(none=base(accuracy=worse)))
    assert found["none", "accuracy_flexible", "word_problems"].verdict == REGRESSION
    assert found["none", "accuracy_strict", "word_problems"].verdict == PASS
    one = {"word_problems": {f"p{n}": [n % 2, int(n >= 1)] for n in range(40)}}
    assert verdicts(run(variant(accuracy=one)))["draft", "accuracy_flexible", "word_problems"].verdict == PASS


def test_one_more_fault_is_a_regression():
    assert verdicts(run(variant(faults=1)))["draft", "output_match_faults", ""].verdict == REGRESSION
    before = run(variant(faults=1))
    assert verdicts(run(variant(faults=1)), before)["draft", "output_match_faults", ""].verdict == PASS


def test_a_slower_draft_is_a_regression_on_the_same_machine_alone():
    slow = variant(latency={"1": {f"r{n}": [40 + n, 1.5 + n / 100] for n in range(12)}})
    found = verdicts(run(slow))["draft", "speedup_c1", ""]
    assert found.verdict == REGRESSION and found.change == pytest.approx(-0.32, abs=0.01)
    elsewhere = verdicts(run(slow, hardware=HARDWARE | {"cores": 8}))["draft", "speedup_c1", ""]
    assert (elsewhere.verdict, elsewhere.note) == (SKIPPED, "measured on other hardware")


def test_times_of_a_busy_machine_are_not_compared():
    slow = {"1": {f"r{n}": [40 + n, 1.5 + n / 100] for n in range(12)}}
    busy = variant(latency=slow, absent={"speedup_c1": "other programs took 40% of the cores"})
    found = verdicts(run(busy))["draft", "speedup_c1", ""]
    assert (found.verdict, found.note) == (SKIPPED, "other programs took 40% of the cores")


def test_a_regression_outweighs_what_cannot_be_judged_and_nothing_compared_is_no_pass():
    assert outcome([Verdict("a", "m", "", REGRESSION), Verdict("a", "n", "", CANNOT)]) == REGRESSION
    assert outcome([Verdict("a", "m", "", SKIPPED)]) == CANNOT
    assert outcome([]) == CANNOT
