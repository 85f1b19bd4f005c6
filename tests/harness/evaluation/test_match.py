"""Verdicts of harness.evaluation.match on hand-made replies."""

import pytest

from harness.errors import UserError
from harness.evaluation.match import compare, first_difference
from harness.evaluation.settings import MatchSettings
from harness.sections.evaluate import OutputMatch

SETTINGS = MatchSettings(near_tie_nats=0.5, scale="full")


def reply(prompt_id, token_ids, margins=None, seconds=None, prompt=(1, 2), source="word_problems"):
    """`margins[i]` nats lie between token i and the next candidate, `seconds[i]` (9 where not given)."""
    margins, seconds = margins or [5.0] * len(token_ids), seconds or [9] * len(token_ids)
    return {
        "id": prompt_id,
        "source": source,
        "prompt_token_ids": list(prompt),
        "token_ids": token_ids,
        "token_texts": [f"<{token}>" for token in token_ids],
        "top_logprobs": [[[t, -0.1], [s, -0.1 - m]] for t, s, m in zip(token_ids, seconds, margins, strict=True)],
        "spec": None,
    }


def only(base, variant):
    found = compare([base], [variant], SETTINGS)
    assert (found["exact"], found["total"]) == (0, 1)
    return found["differences"][0], found["faults"]


def test_the_first_difference_is_where_a_token_or_an_end_parts_the_replies():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2
    assert first_difference([], [1]) == 0


def test_equal_replies_are_exact_with_wilsons_interval():
    found = compare([reply("a", [1, 2]), reply("b", [3])], [reply("b", [3]), reply("a", [1, 2])], SETTINGS)
    assert (found["exact"], found["total"], found["exact_share"], found["faults"]) == (2, 2, 1.0, 0)
    assert found["low"] == pytest.approx(0.342, abs=1e-3)
    assert found["differences"] == []


def test_the_second_candidate_at_a_near_tie_is_benign():
    base = reply("a", [1, 2, 3], margins=[5, 0.1, 5], seconds=[9, 7, 9])
    found, faults = only(base, reply("a", [1, 7, 3]))
    assert (found["position"], found["base_token"], found["draft_token"]) == (1, 2, 7)
    assert (found["margin_nats"], found["verdict"], faults) == (0.1, "benign", 0)
    assert (found["context_before"], found["base_after"], found["draft_after"]) == ("<1>", "<2><3>", "<7><3>")


def test_the_second_candidate_at_a_wide_margin_is_a_fault():
    found, faults = only(reply("a", [1, 2], margins=[5, 0.5], seconds=[9, 7]), reply("a", [1, 7]))
    assert (found["verdict"], faults) == ("fault", 1)


def test_a_token_that_was_no_candidate_is_a_fault_even_at_a_near_tie():
    found, faults = only(reply("a", [1, 2], margins=[5, 0.1], seconds=[9, 7]), reply("a", [1, 8]))
    assert (found["verdict"], faults) == ("fault", 1)


def test_three_tokens_that_tie_are_benign_when_both_runs_say_so():
    base = reply("a", [1, 2], margins=[5, 0.1], seconds=[9, 7])
    tie, _ = only(base, reply("a", [1, 8], margins=[5, 0.2], seconds=[9, 2]))
    assert tie["verdict"] == "benign"
    far, _ = only(base, reply("a", [1, 8], margins=[5, 0.9], seconds=[9, 2]))
    assert far["verdict"] == "fault"


def test_swapped_candidates_are_benign():
    # An exact tie: the base emitted the token that it lists second.
    base = reply("a", [1, 2])
    base["top_logprobs"][1] = [[7, -0.69], [2, -0.69]]
    found, _ = only(base, reply("a", [1, 7]))
    assert (found["margin_nats"], found["verdict"]) == (0.0, "benign")


def test_a_reply_that_stops_early_without_an_end_token_is_a_fault():
    found, faults = only(reply("a", [1, 2, 3]), reply("a", [1, 2]))
    assert (found["position"], found["draft_token"], found["verdict"], faults) == (2, None, "fault", 1)
    longer, _ = only(reply("a", [1, 2]), reply("a", [1, 2, 3]))
    assert (longer["base_token"], longer["margin_nats"], longer["verdict"]) == (None, None, "fault")


def test_an_end_token_at_a_near_tie_is_benign():
    base = reply("a", [1, 2, 3], margins=[5, 0.05, 5], seconds=[9, 0, 9])
    found, _ = only(base, reply("a", [1, 0]))
    assert (found["position"], found["verdict"]) == (1, "benign")


def test_replies_that_only_one_run_has_are_named_and_not_counted():
    found = compare([reply("a", [1]), reply("b", [1])], [reply("a", [1]), reply("c", [1])], SETTINGS)
    assert (found["total"], found["exact"], found["missing"]) == (1, 1, ["b", "c"])


def test_replies_without_a_counterpart_are_an_error():
    with pytest.raises(UserError, match=r"share no reply\. Fix:"):
        compare([reply("a", [1])], [reply("b", [1])], SETTINGS)


def test_different_prompts_under_one_id_are_an_error():
    with pytest.raises(UserError, match=r"a: base and variant were asked different prompts\. Fix:"):
        compare([reply("a", [1])], [reply("a", [1], prompt=(1, 3))], SETTINGS)


def test_in_float32_one_at_a_time_even_a_near_tie_is_a_fault():
    base, variant = reply("a", [1, 2], margins=[5, 1e-6], seconds=[9, 7]), reply("a", [1, 7])
    assert compare([base], [variant], SETTINGS)["faults"] == 0
    assert compare([base], [variant], SETTINGS.model_copy(update={"exact": True}))["faults"] == 1


def test_rounding_is_what_a_close_margin_changes_by_up_to_where_the_replies_part():
    # Margins 0.5, 0.25 and, where the second part, 0.125; 5 nats are not close, and then the texts differ.
    base = [reply("a", [1, 2], margins=[0.5, 5]), reply("b", [1, 2, 3], margins=[0.25, 0.125, 1], seconds=[9, 7, 9])]
    variant = [reply("a", [1, 2], margins=[0.75, 9]), reply("b", [1, 7, 3], margins=[0.25, 0.5, 0], seconds=[9, 2, 9])]
    found = compare(base, variant, SETTINGS)["rounding"]
    # 0.25 apart; the same; 0.125 for the first token in one run, 0.5 for the second in the other.
    assert (found["tokens"], found["largest_nats"]) == (3, 0.625)
    assert found["p99_nats"] == pytest.approx(0.6175)


def test_rounding_of_runs_without_a_close_choice_is_not_known():
    found = compare([reply("a", [1, 2])], [reply("a", [1, 2])], SETTINGS)["rounding"]
    assert (found["tokens"], found["p99_nats"], found["largest_nats"]) == (0, None, None)


def test_rounding_leaves_out_tokens_whose_candidates_are_not_the_same():
    base, variant = reply("a", [1, 2], margins=[0.5, 0.5]), reply("a", [1, 2], margins=[0.5, 0.5], seconds=[9, 8])
    assert compare([base], [variant], SETTINGS)["rounding"] == {
        "tokens": 1, "below_nats": 2.0, "p99_nats": 0.0, "largest_nats": 0.0,
    }  # fmt: skip


def test_the_share_of_equal_replies_is_given_for_each_source():
    base = [reply("a", [1]), reply("b", [2]), reply("c", [3], source="instructions")]
    variant = [reply("a", [1]), reply("b", [9]), reply("c", [3], source="instructions")]
    found = compare(base, variant, SETTINGS)["sources"]
    assert {source: (share["exact"], share["total"]) for source, share in found.items()} == {
        "word_problems": (1, 2),
        "instructions": (1, 1),
    }


def test_the_published_form_counts_the_first_tokens_of_the_named_sources_only():
    # Of the named sources: equal; parting at token 2; ended after 1 token on one side. The third source is not named.
    base = [reply("a", [1, 2, 3]), reply("b", [1, 2, 3]), reply("c", [1, 2]), reply("d", [8], source="instructions")]
    variant = [reply("a", [1, 2, 9]), reply("b", [1, 9, 3]), reply("c", [1]), reply("d", [9], source="instructions")]
    asked = OutputMatch(sources=["word_problems", "gsm8k"], first_tokens=2)
    found = compare(base, variant, SETTINGS.model_copy(update={"output_match": asked}))["start"]
    assert (found["exact"], found["total"], found["first_tokens"]) == (1, 3, 2)
    assert found["exact_share"] == pytest.approx(1 / 3)
    first = asked.model_copy(update={"limit": 1})
    assert compare(base, variant, SETTINGS.model_copy(update={"output_match": first}))["start"]["total"] == 1


def test_the_published_form_without_its_prompts_says_so():
    asked = OutputMatch(sources=["repeat_word", "gsm8k_5shot"], first_tokens=10)
    found = compare([reply("a", [1])], [reply("a", [1])], SETTINGS.model_copy(update={"output_match": asked}))
    assert found["start"] == {"not_run": "no replies to repeat_word or gsm8k_5shot"}
