"""The answers on top follow from intervals: scripted speed-ups, faults and published figures in, sentences out."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from reports.advice import answers, choose
from reports.collect import Run, load_run
from reports.names import listed
from reports.rows import Results, make_rows
from tests.reports.synthetic import ALGORITHM, NAME, change, difference, write_extra

LOOKUP = "n-gram look-up"


def scripted(results, speedups=None):
    """(run, rows) with speed-ups replaced: {(variant, level): (value, low, high)}."""
    run, rows = load_run(results, NAME), []
    for row in make_rows(run).rows:
        given = (speedups or {}).get((row.variant, row.metric))
        rows.append(replace(row, **dict(zip(("value", "low", "high"), given, strict=True))) if given else row)
    return run, Results(rows)


def asked(results, number, speedups=None):
    """(verdict, sentences in one text) of question `number`."""
    found = answers(*scripted(results, speedups))[number]
    return found.verdict, " ".join(found.sentences)


def both(level, draft, lookup):
    """Speed-ups of both drafts at a level."""
    return {(ALGORITHM, f"speedup_c{level}"): draft, ("ngram", f"speedup_c{level}"): lookup}


def add_fault(results, variant):
    """One reply of a variant departs."""

    def spoil(content: dict) -> None:
        content["differences"].append(difference(40, 3.0, "fault"))
        content["faults"] = 1

    change(results / f"match/{variant}.json", spoil)


def test_the_fastest_draft_is_named_with_speed_interval_machine_and_the_rest_behind_it(results):
    verdict, told = asked(results, 0, both(1, (1.45, 1.4, 1.5), (1.09, 1.05, 1.13)))
    assert verdict == ALGORITHM
    assert told == (
        f"Use it: {ALGORITHM} writes 39.6 tokens per second against 27.4 without a draft: 1.45× (1.40 to 1.50), over "
        "20 requests on 2 cores of Example CPU 3000, 23 GiB memory, no GPU. "
        "Speeds are of word problems, as the drafts learnt from, with replies of 64 tokens. "
        f"No other speed was measured; a step of {ALGORITHM} yields 1.71 tokens on instructions, against 2.78 here. "
        f"Slower than {ALGORITHM}, yet faster than no draft: {LOOKUP} with 1.09× (1.05 to 1.13), "
        f"{ALGORITHM} / {LOOKUP} = 1.36× (1.32 to 1.40)."
    )


def test_drafts_whose_direct_ratio_holds_1_are_not_told_apart(results):
    speedups = both(1, (1.45, 1.4, 1.5), (1.09, 1.05, 1.13)) | {(ALGORITHM, "draft_speed_ratio_c1"): (1.33, 0.99, 1.8)}
    verdict, told = asked(results, 0, speedups)
    assert verdict == f"{ALGORITHM} or {LOOKUP}"
    ratio = f"{ALGORITHM} / {LOOKUP} = 1.33× (0.99 to 1.80)"
    assert f"Not told apart from {ALGORITHM} is {LOOKUP} with 1.09× (1.05 to 1.13), {ratio}." in told
    assert "Use it" not in told


def test_drafts_whose_intervals_overlap_are_told_apart_by_their_direct_ratio(results):
    verdict, told = asked(results, 0, both(1, (1.45, 1.3, 1.5), (1.35, 1.25, 1.4)))
    assert verdict == ALGORITHM
    assert f"Slower than {ALGORITHM}, yet faster than no draft: {LOOKUP} with 1.35×" in told


def test_without_a_direct_ratio_the_intervals_decide(results):
    run, rows = scripted(results, both(1, (1.45, 1.3, 1.5), (1.35, 1.25, 1.4)))
    left = [row for row in rows.rows if row.base != "draft_speed_ratio"]
    found = answers(run, Results(left))[0]
    assert found.verdict == f"{ALGORITHM} or {LOOKUP}"
    assert any(sentence.endswith("with 1.35× (1.25 to 1.40): the intervals overlap.") for sentence in found.sentences)


@pytest.mark.parametrize(
    ("draft", "lookup", "said"),
    [
        ((1.05, 0.95, 1.2), (0.9, 0.8, 0.95), "no draft is surely faster than none"),
        ((0.95, 0.9, 0.99), (0.9, 0.8, 0.95), "every draft is slower than none"),
    ],
)
def test_no_draft_is_named_when_none_is_surely_faster(results, draft, lookup, said):
    verdict, told = asked(results, 1, both(4, draft, lookup))
    assert verdict == "none"
    assert f"Serve without a draft there: {said}" in told
    assert f"The best is {ALGORITHM} with {draft[0]:.2f}×" in told


def test_no_sure_gain_and_slower_drafts_are_told_apart(results):
    _, told = asked(results, 0, both(1, (1.45, 1.3, 1.5), (1.02, 0.9, 1.1)))
    assert f"No sure gain: {LOOKUP} with 1.02× (0.90 to 1.10)." in told
    _, told = asked(results, 0, both(1, (1.45, 1.3, 1.5), (0.92, 0.9, 0.95)))
    assert f"Slower than no draft: {LOOKUP} with 0.92× (0.90 to 0.95)." in told


def test_the_highest_load_is_asked_for_apart(results):
    found = answers(
        *scripted(results, both(1, (1.4, 1.3, 1.5), (1.1, 1.05, 1.2)) | both(4, (1, 0.9, 1.1), (1, 0.9, 1.1)))
    )
    assert [each.question for each in found[:2]] == [
        "Which draft with one request at a time?", "Which draft with 4 requests at once, the most measured here?",
    ]  # fmt: skip
    assert [each.verdict for each in found[:2]] == [ALGORITHM, "none"]


def test_an_interval_that_is_printed_as_starting_at_1_is_no_sure_gain(results):
    verdict, told = asked(results, 1, both(4, (1.04, 1.003, 1.08), (0.97, 0.94, 0.998)))
    assert verdict == "none"
    assert "no draft is surely faster than none" in told


def test_one_measured_load_is_asked_for_once(results):
    for variant in ("none", "ngram", ALGORITHM):
        change(results / f"measured/{variant}/latency.json", lambda content: content["concurrency"].pop("4"))
    questions = [each.question for each in answers(*scripted(results))]
    assert questions[0] == "Which draft with one request at a time?"
    assert len(questions) == 3


def test_a_draft_with_a_fault_is_never_the_answer_and_is_named_with_the_reason(results):
    add_fault(results, ALGORITHM)
    speedups = both(1, (1.45, 1.4, 1.5), (1.09, 1.05, 1.13))
    verdict, told = asked(results, 0, speedups)
    assert verdict == LOOKUP
    assert f"Left out: {ALGORITHM} with 1.45× (1.40 to 1.50), because it changes the output." in told
    verdict, told = asked(results, 2, speedups)
    assert verdict == f"not with {ALGORITHM}"
    assert f"Do not deploy {ALGORITHM}: 1 of 80 greedy replies departs" in told
    assert "No greedy reply of the other drafts departs" in told


def test_a_draft_without_a_speed_is_named_with_the_reason(results):
    change(
        results / f"measured/{ALGORITHM}/latency.json",
        lambda content: content["concurrency"]["1"].update(invalid=True, failures=6),
    )
    _, told = asked(results, 0)
    assert f"Left out: {ALGORITHM}, not run: no such measurement." in told


def test_a_speed_that_may_not_be_compared_is_left_out_with_the_reason(results):
    run, rows = scripted(results, both(1, (1.9, 1.8, 2.0), (1.09, 1.05, 1.13)))
    noted = [
        replace(row, note="not comparable: other programs ran") if row.variant == ALGORITHM else row
        for row in rows.rows
    ]
    found = answers(run, Results(noted))[0]
    assert found.verdict == LOOKUP
    assert f"Left out: {ALGORITHM} with 1.90× (1.80 to 2.00), not comparable: other programs ran." in found.sentences


def test_a_draft_on_a_quantised_verifier_is_left_out_as_another_model(results, monkeypatch):
    run, rows = scripted(results, both(1, (1.45, 1.4, 1.5), (1.09, 1.05, 1.13)))
    variant = f"{ALGORITHM}_int8"
    faster = replace(rows.get(ALGORITHM, "speedup_c1", "word_problems"), variant=variant, value=2.5, low=2.4, high=2.6)
    run.match[variant] = run.match[ALGORITHM]
    monkeypatch.setattr(Run, "drafted", property(lambda _: ["ngram", ALGORITHM, variant]))
    found = answers(run, Results([*rows.rows, faster]))[0]
    assert found.verdict == ALGORITHM
    reason = "on a quantised verifier, which is another model"
    assert f"Left out: {ALGORITHM}, int8 with 2.50× (2.40 to 2.60), {reason}." in found.sentences


def test_lossless_is_claimed_as_far_as_it_was_tested(results):
    verdict, told = asked(results, 2)
    assert verdict == "yes, as far as was tested"
    assert "72 to 77 of 80 are identical token by token" in told
    assert "leave room for a share of at most 4.6% (95%)" in told  # Wilson: z² / (n + z²) with z = 1.96, n = 80
    assert (
        "On 40 word problems the drafts change accuracy by −2.5 to 0.0 points; every paired interval holds zero" in told
    )
    assert "At temperatures above 0: not run" in told


def write_sampled(results, variant, p_value, lossless):
    """What the test of sampled replies leaves."""
    figures = [{"metric": "sampling_p", "value": p_value, "n": 1500},
               {"metric": "sampling_detectable_bias", "benchmark": "draft", "value": 0.04, "n": 900}]  # fmt: skip
    found = {"lossless": lossless, "temperature": 0.8, "found": "tokens where a draft stood are not distributed so"}
    write_extra(results, f"lossless/{variant}.json", figures, **found)


def test_sampled_replies_that_hold_are_said_with_p_value_tokens_and_what_would_have_shown(results):
    write_sampled(results, ALGORITHM, 0.31, True)
    write_sampled(results, "ngram", 0.72, True)
    verdict, told = asked(results, 2)
    assert verdict == "yes, as far as was tested"
    assert f"At temperature 0.8, the sampled tokens of {ALGORITHM} and {LOOKUP} are distributed like" in told
    assert "as far as 1,500 tokens each can tell (smallest p-value 0.31" in told
    assert "The likeliest token in place of 4.0% of them would have shown (9 in 10)." in told


def test_a_draft_that_changes_sampled_replies_is_never_the_answer(results):
    write_sampled(results, ALGORITHM, 0.00001, False)
    speedups = both(1, (1.45, 1.4, 1.5), (1.09, 1.05, 1.13))
    verdict, told = asked(results, 0, speedups)
    assert verdict == LOOKUP
    assert "because it changes the output" in told
    verdict, told = asked(results, 2, speedups)
    assert verdict == f"not with {ALGORITHM}"
    assert f"Do not deploy {ALGORITHM} at a temperature above 0: tokens where a draft stood" in told


def test_the_draft_length_that_pays_is_said_for_its_load(results):
    best = {"metric": "best_draft_tokens", "n": 20}
    figures = [best | {"benchmark": "word_problems", "value": 3, "low": 2, "high": 4},
               best | {"benchmark": "word_problems/4 at once", "value": 2, "low": 2, "high": 2},
               *({"metric": f"step_ms_k{k}", "benchmark": "word_problems/4 at once", "value": 9.0} for k in (0, 2)),
               ]  # fmt: skip
    write_extra(results, f"speed/{ALGORITHM}.json", figures)
    speedups = both(1, (1.45, 1.4, 1.5), (1.09, 1.05, 1.13)) | both(4, (1.45, 1.4, 1.5), (1.09, 1.05, 1.13))
    first, last = (asked(results, number, speedups)[1] for number in (0, 1))
    assert f"Of what was compared, 3 does best for {ALGORITHM} (2 to 4 are not told apart)" in first
    compared = "Of 0 and 2 draft tokens a step, all that were compared"
    assert f"{compared}, 2 does best for {ALGORITHM}; it was served with 3." in last


def test_an_accuracy_change_beyond_its_interval_is_said(results):
    run, rows = scripted(results)
    edited = [
        replace(row, value=-0.2, low=-0.3, high=-0.1)
        if (row.variant, row.metric) == (ALGORITHM, "accuracy_flexible_difference") and row.value is not None
        else row
        for row in rows.rows
    ]
    told = " ".join(answers(run, Results(edited))[2].sentences)
    assert (
        f"Accuracy on word problems changes with {ALGORITHM} by −20.0 (−30.0 to −10.0) points: beyond chance." in told
    )
    assert "the other drafts change accuracy by 0.0 points" in told


def test_a_smoke_run_says_that_it_says_nothing(smoke_results):
    found = answers(*scripted(smoke_results))
    assert "This is a smoke run: it says nothing about the worth of a draft." in found[0].sentences
    assert not any("Use it" in sentence for each in found for sentence in each.sentences)


def put_published(*items):
    """Published figures of the toy reproduction."""
    base = {"algorithm": ALGORITHM, "metric": "acceptance_length", "benchmark": "word_problems", "source": "a paper"}
    Path(f"reproductions/{NAME}/published.yaml").write_text(json.dumps([base | item for item in items]))


def test_without_published_figures_that_is_the_answer(results):
    verdict, told = asked(results, 3)
    assert verdict == "there are none for this verifier"
    assert told == "Nobody has published figures for drafts of example/Toy-135M-Instruct that we know of."


def test_the_nearest_published_figure_is_told_with_distance_and_what_differs(results):
    conditions = {"engine": "SGLang", "hardware": "1xH100", "max_output_tokens": 2048}
    put_published({"value": 4.0, "k": 7, "temperature": 1.0, "draft": "lab/Draft", "conditions": conditions})
    ours = make_rows(load_run(results, NAME)).value(ALGORITHM, "acceptance_length", "word_problems")
    verdict, told = asked(results, 3)
    below = f"{1 - ours / 4:.0%} below"
    assert verdict == f"{ALGORITHM}: {below}"
    assert f"acceptance length on word problems: {ours:.2f}× " not in told
    assert f"{ours:.2f} (" in told
    assert f"here, 4.00 published, {below}." in told
    assert (
        "What differs: draft lab/Draft there, ours learnt from 98 replies; 7 draft tokens per step there, 3 here; "
        "temperature 1 there, greedy here; SGLang there, vLLM here; up to 2048 tokens a reply there, 64 here." in told
    )


def test_a_published_figure_within_our_interval_is_called_that(results):
    ours = make_rows(load_run(results, NAME)).get(ALGORITHM, "acceptance_length", "word_problems")
    put_published({"value": (ours.low + ours.high) / 2, "k": 3, "temperature": 0.0})
    assert asked(results, 3)[0] == f"{ALGORITHM}: within our interval"


def test_published_figures_without_a_counterpart_say_why(results):
    put_published({"value": 2.26, "benchmark": "mt_bench"}, {"value": 3.0, "benchmark": "HumanEval"})
    verdict, told = asked(results, 3)
    assert verdict == "nothing to compare"
    assert "None of the 2 published figures has a counterpart here" in told
    assert "data.folder holds no mt_bench/" in told
    assert "HumanEval is no benchmark of this reproduction" in told


def test_a_choice_keeps_ties_and_laggards_apart(results):
    speedups = both(1, (1.5, 1.4, 1.6), (1.45, 1.39, 1.5)) | {(ALGORITHM, "draft_speed_ratio_c1"): (1.03, 0.9, 1.2)}
    run, rows = scripted(results, speedups)
    found = choose(run, rows, 1)
    assert (found.best, found.tied, found.behind) == (ALGORITHM, ["ngram"], [])


def test_names_are_listed_as_people_do():
    assert [listed("abc"[:n], "and") for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]


def test_extra_figures_do_not_disturb_the_answers(results):
    write_extra(
        results, f"speed/{ALGORITHM}.json", [{"metric": "speedup_k3", "benchmark": "word_problems", "value": 9.9}]
    )
    assert "9.9" not in " ".join(sentence for each in answers(*scripted(results)) for sentence in each.sentences)
