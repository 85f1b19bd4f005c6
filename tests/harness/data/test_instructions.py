"""Instructions: forms and topics of the splits never meet, a seed gives the same prompts."""

from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data.instructions import FORMS, PEOPLE, TOPICS, instructions, is_heldout


def test_there_are_enough_topics_and_forms_and_none_is_listed_twice():
    assert len(set(TOPICS)) == len(TOPICS) >= 60
    assert len(FORMS) >= 12
    assert len(set(PEOPLE)) == len(PEOPLE)


def test_a_form_about_a_topic_is_in_one_split_only_and_both_splits_know_every_form():
    pairs = {(form, topic): is_heldout(form, topic) for form in FORMS for topic in TOPICS}
    for heldout in (False, True):
        assert {form for (form, _), held in pairs.items() if held == heldout} == set(FORMS)
    origin = {
        text.format(topic=topic, person=partner, other=partner): (form, topic)
        for form, text in FORMS.items()
        for topic in TOPICS
        for partner in (*TOPICS, *PEOPLE)
    }
    for heldout in (False, True):
        for form, messages, answer in instructions(heldout, seed=7):
            prompt = messages[0]["content"]
            assert origin[prompt][0] == form
            assert pairs[origin[prompt]] == heldout
            assert answer is None


def test_no_prompt_comes_twice_in_or_across_splits():
    train = [messages[0]["content"] for _, messages, _ in instructions(False, seed=1)]
    heldout = [messages[0]["content"] for _, messages, _ in instructions(True, seed=2)]
    assert len(set(train + heldout)) == len(train) + len(heldout) > 5000


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), heldout=st.booleans())
def test_a_seed_gives_the_same_prompts_and_another_seed_others(seed, heldout):
    first, again, other = (list(islice(instructions(heldout, s), 60)) for s in (seed, seed, seed + 1))
    assert first == again != other
    assert {form for form, _, _ in first} == set(FORMS)
