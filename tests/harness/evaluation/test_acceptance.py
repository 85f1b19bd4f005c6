"""Counters, lengths and identity checks of harness.evaluation.acceptance, worked by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.evaluation.acceptance import (
    Counters,
    benchmark,
    count_details,
    identity_checks,
    parse_counters,
    past_end,
    settled_counters,
)
from harness.evaluation.client import Answer
from tests.harness.evaluation.fake_server import counters_text

DRAWS = 200


def answer(prompt_id, accepted, length=None, drafted=3):
    """A reply of `length` tokens; as many as the steps emit where none is given."""
    emitted = 1 + sum(a + 1 for a in accepted)
    spec = {"accepted_per_step": list(accepted), "drafted_per_step": [drafted] * len(accepted)}
    return Answer(prompt_id, text="x", token_ids=list(range(length or emitted)), finish_reason="stop", spec=spec)


def test_four_steps_accepting_0_1_2_3_of_3_have_length_two_and_a_half():
    answers = [answer("a", [0, 1, 2, 3])]
    counters = count_details(answers, 3)
    assert counters == Counters(drafts=4, draft_tokens=12, accepted=6, accepted_per_position=(3, 2, 1))
    figures = benchmark(counters, answers, DRAWS, seed=0)
    assert figures["acceptance_length_pooled"] == 2.5
    assert figures["acceptance_rate_per_position"] == [0.75, 0.5, 0.25]
    assert figures["accepted"] / figures["draft_tokens"] == 0.5
    assert figures["emitted_tokens_per_step"] == 2.5
    assert figures["accepted_past_end"] == 0
    assert all(identity_checks(figures, counters, answers).values())


def test_drafts_accepted_after_the_end_token_are_shown_apart():
    # The prefill emits one token; one step accepts 5 of 5, and the third of them ends the reply.
    ended = answer("a", [5], length=1 + 3, drafted=5)
    figures = benchmark(count_details([ended], 5), [ended], DRAWS, seed=0)
    assert figures["acceptance_length_pooled"] == 6.0
    assert figures["emitted_tokens_per_step"] == 3.0
    assert figures["accepted_past_end"] == 3  # two drafts and the bonus token
    assert figures["past_end_matters"]


def test_engines_are_added_up_and_models_kept_apart():
    page = counters_text(engine="0", drafts=100, draft_tokens=300, per_position=(80, 50, 20))
    page += counters_text(engine="1", drafts=300, draft_tokens=900, per_position=(200, 80, 20))
    page += counters_text(model="other", drafts=7, draft_tokens=21, per_position=(7, 7, 7))
    found = parse_counters(page, "toy", 3)
    assert found == Counters(400, 1200, 450, (280, 130, 40))
    assert 1 + found.accepted / found.drafts == 2.125
    assert found.accepted_per_position[0] / found.drafts == 0.70
    assert parse_counters(page, "other", 3) == Counters(7, 21, 21, (7, 7, 7))


def test_a_model_without_counters_is_an_error_that_names_those_that_have_some():
    with pytest.raises(ValueError, match=r"'absent'.*\['toy'\]"):
        parse_counters(counters_text(drafts=1), "absent", 3)


def test_only_what_came_between_two_scrapes_counts():
    before = Counters(10, 30, 12, (7, 4, 1))
    assert Counters(14, 42, 18, (10, 6, 2)).since(before) == Counters(4, 12, 6, (3, 2, 1))


def test_counters_that_went_back_are_an_error():
    with pytest.raises(ValueError, match="restarted"):
        Counters(1, 3, 0, (0, 0, 0)).since(Counters(10, 30, 12, (7, 4, 1)))


def engines(*drafts):
    """A page with one engine for each (drafts, accepted at the first position)."""
    return "".join(
        counters_text(engine=str(i), drafts=n, draft_tokens=n, per_position=(hits,))
        for i, (n, hits) in enumerate(drafts)
    )


def test_the_restart_of_one_engine_is_noticed_though_the_sum_went_up():
    before = parse_counters(engines((100, 50), (100, 50)), "toy", 1)
    after = parse_counters(engines((300, 150), (5, 2)), "toy", 1)
    with pytest.raises(ValueError, match=r"engine 1 went back from \(100, 50\) to \(5, 2\)"):
        after.since(before)


def test_an_engine_that_is_gone_is_noticed():
    before, after = parse_counters(engines((1, 1), (1, 1)), "toy", 1), parse_counters(engines((9, 9)), "toy", 1)
    with pytest.raises(ValueError, match="engine 1 went back"):
        after.since(before)


def test_a_scrape_waits_until_the_last_step_is_counted(monkeypatch):
    monkeypatch.setattr("harness.evaluation.acceptance.SETTLE_S", 0.0)
    pages = iter([counters_text(drafts=n, draft_tokens=3 * n, per_position=(n, 0, 0)) for n in (4, 5, 6, 6, 7)])
    assert settled_counters(lambda: next(pages), "toy", 3).drafts == 6


def test_steps_that_drafted_nothing_count_as_steps():
    # 10 tokens, but the two steps that drafted emit only 3: the other 6 came one by one.
    rare = answer("a", [0, 1], length=10)
    assert past_end(rare) == -6
    figures = benchmark(count_details([rare], 3), [rare], DRAWS, seed=0)
    assert figures["acceptance_length_pooled"] == 1.5
    assert figures["emitted_tokens_per_step"] == 9 / 8
    assert figures["drafted_step_share"] == 2 / 8
    assert figures["accepted_past_end"] is None


def test_nothing_drafted_gives_no_length_rather_than_one():
    silent = Answer("a", text="x", token_ids=[1, 2, 3], finish_reason="stop")
    figures = benchmark(Counters(0, 0, 0, (0, 0, 0)), [silent], DRAWS, seed=0)
    assert figures["acceptance_length_pooled"] is None
    assert figures["acceptance_rate_per_position"] == []
    assert (figures["low"], figures["high"]) == (None, None)
    assert figures["emitted_tokens_per_step"] == 1.0


def test_a_request_that_was_repeated_breaks_the_comparison_with_the_replies():
    answers = [answer("a", [1, 2])]
    counters = count_details(answers, 3)
    twice = Counters(*(2 * n for n in (counters.drafts, counters.draft_tokens, counters.accepted)), (4, 2, 0))
    checks = identity_checks(benchmark(twice, answers, DRAWS, seed=0), twice, answers)
    assert checks == {
        "per_position_sums_to_accepted": True,
        "length_is_one_plus_rates": True,
        "scrapes_equal_replies": False,
        "replies_equal_their_sums": True,
    }


def test_failed_replies_are_no_prompts_of_the_figures():
    answers = [answer("a", [1, 1]), Answer("b", error="status 500")]
    figures = benchmark(count_details(answers, 3), answers, DRAWS, seed=0)
    assert figures["prompts"] == 1
    assert figures["emitted_tokens_per_step"] == 2.0


@given(st.lists(st.lists(st.integers(0, 4), max_size=12), min_size=1, max_size=6))
def test_the_identities_hold_for_any_replies(replies):
    answers = [answer(str(i), accepted, drafted=4) for i, accepted in enumerate(replies)]
    counters = count_details(answers, 4)
    figures = benchmark(counters, answers, 100, seed=0)
    assert all(identity_checks(figures, counters, answers).values())
    assert sum(figures["accepted_per_position"]) == figures["accepted"] <= figures["draft_tokens"]
    if figures["drafts"]:
        assert len(replies) == 1 or 1 <= figures["low"] <= figures["high"]
        assert figures["emitted_tokens_per_step"] == pytest.approx(figures["acceptance_length_pooled"])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.data())
def test_a_broken_counter_never_passes_the_identities(accepted, data):
    answers = [answer("a", accepted, drafted=4)]
    counters = count_details(answers, 4)
    position = data.draw(st.integers(0, 3))
    per_position = list(counters.accepted_per_position)
    per_position[position] += 1
    broken = replace(counters, accepted_per_position=tuple(per_position))
    assert not all(identity_checks(benchmark(broken, answers, 100, seed=0), broken, answers).values())


def test_lengths_are_given_by_category_where_something_was_drafted():
    answers = [answer("a", [3, 1]), answer("b", [0, 2]), answer("c", [1]), answer("d", []), answer("e", [3])]
    kinds = {"a": "math", "b": "math", "c": "writing", "d": "coding", "e": None}
    found = benchmark(count_details(answers, 3), answers, DRAWS, 0, kinds)["categories"]
    assert found.keys() == {"math", "writing"}  # nothing was drafted for coding, and e has no category
    assert (found["math"]["acceptance_length_pooled"], found["math"]["drafts"], found["math"]["prompts"]) == (2.5, 4, 2)
    assert found["math"]["low"] <= 2.5 <= found["math"]["high"]
    assert (found["writing"]["acceptance_length_pooled"], found["writing"]["low"]) == (2.0, None)


def test_the_mean_of_prompts_is_not_the_pooled_length():
    # 1 step that accepts 3, and 4 steps that accept none: 1 + 3/5 pooled, (4 + 1) / 2 on average.
    answers = [answer("a", [3]), answer("b", [0, 0, 0, 0])]
    figures = benchmark(count_details(answers, 3), answers, DRAWS, seed=0)
    assert figures["acceptance_length_pooled"] == pytest.approx(1.6)
    mean = figures["mean_of_prompts"]
    assert mean["acceptance_length_mean_of_prompts"] == 2.5
    assert (mean["p10"], mean["p50"], mean["p90"]) == pytest.approx((1.3, 2.5, 3.7))
    assert benchmark(Counters(0, 0, 0, (0,)), [Answer("a")], DRAWS, seed=0)["mean_of_prompts"] is None


def test_a_reply_whose_steps_contradict_the_servers_own_sums_is_found():
    good = replace(answer("a", [2, 0]), spec_sums=(2, 6, 2))
    for bad in ((3, 6, 2), (2, 5, 2), (2, 6, 3)):
        answers = [good, replace(good, id="b", spec_sums=bad)]
        counters = count_details(answers, 3)
        assert not identity_checks(benchmark(counters, answers, DRAWS, 0), counters, answers)[
            "replies_equal_their_sums"
        ]
    counters = count_details([good], 3)
    assert identity_checks(benchmark(counters, [good], DRAWS, 0), counters, [good])["replies_equal_their_sums"]
