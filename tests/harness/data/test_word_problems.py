"""Word problems: gold answers follow from their steps, splits never meet, a seed gives the same problems."""

import re
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data.word_problems import TEMPLATES, long_prompts, solve, word_problems

WORDS = {"a": "Ava", "b": "Ben", "things": "apples", "place": "market"}
NUMBERS = re.compile(r"\d+")
STEPS = re.compile(r"= <<(\d+)([-+*/])(\d+)=(\d+)>>(\d+)")


def numbers_in(category, turn):
    """What identifies a problem: its template and the numbers in its text."""
    return category, tuple(NUMBERS.findall(turn["content"]))


def test_there_are_at_least_twelve_templates_of_one_to_three_steps():
    assert len({template.name for template in TEMPLATES}) == len(TEMPLATES) >= 12
    assert {len(template.steps) for template in TEMPLATES} == {1, 2, 3}


def test_a_solution_is_written_in_the_form_of_gsm8k():
    lose = next(template for template in TEMPLATES if template.name == "lose")
    assert solve(lose, {"x": 12, "y": 9, "z": 4}, WORDS).split("\n") == [
        "Ava finds 12 + 9 = <<12+9=21>>21 apples.",
        "Ava has 21 - 4 = <<21-4=17>>17 apples now.",
        "#### 17",
    ]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), heldout=st.booleans())
def test_every_step_is_right_and_the_last_one_is_the_answer(seed, heldout):
    for category, messages, answer in islice(word_problems(heldout, seed), len(TEMPLATES)):
        template = next(template for template in TEMPLATES if template.name == category)
        steps = STEPS.findall(answer)
        assert len(steps) == len(template.steps)
        known = NUMBERS.findall(messages[-1]["content"])
        for left, sign, right, result, shown in steps:
            a, b = int(left), int(right)
            exact = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign]
            assert exact == int(result) == int(shown) > 0
            assert {left, right} <= set(known), "a step uses a number that is neither given nor found before"
            known.append(result)
        assert answer.endswith(f"\n#### {result}")


@settings(deadline=None)
@given(template=st.sampled_from(TEMPLATES), data=st.data())
def test_no_numbers_of_a_template_lead_below_one_or_to_a_remainder(template, data):
    numbers = {name: data.draw(st.sampled_from(values)) for name, values in template.ranges.items()}
    operators = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b}
    for result, calculation in [*template.given, *((name, work) for name, work, _ in template.steps)]:
        left, sign, right = calculation.split()
        numbers[result] = operators[sign](numbers[left], numbers[right])
        assert numbers[result] >= 1 and numbers[result] == int(numbers[result])


def test_no_heldout_problem_has_the_numbers_of_anything_shown_in_training():
    """All problems of both splits, under different seeds: the law does not hang on which were drawn."""
    train = list(word_problems(False, seed=1))
    shown = {numbers_in(category, turn) for category, messages, _ in train for turn in (messages[0], messages[-1])}
    heldout = {numbers_in(category, messages[-1]) for category, messages, _ in word_problems(True, seed=2)}
    assert len(heldout) > 500 and len(shown) > 1500
    assert {category for category, _ in shown} == {category for category, _ in heldout}
    assert not shown & heldout


def test_the_solved_problem_before_a_problem_is_a_training_problem_of_its_kind_with_other_numbers():
    train = {numbers_in(category, messages[-1]) for category, messages, _ in word_problems(False, seed=1)}
    for category, messages, answer in islice(word_problems(True, seed=3), 1000):
        assert [turn["role"] for turn in messages] == ["user", "assistant", "user"]
        assert numbers_in(category, messages[0]) in train
        assert numbers_in(category, messages[0]) != numbers_in(category, messages[-1])
        assert "<<" not in messages[1]["content"]
        assert messages[1]["content"].count("\n") == answer.count("\n")
        assert re.search(r"= (\d+)[^\n]*\n#### \1$", messages[1]["content"])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_a_seed_gives_the_same_problems_and_another_seed_others(seed):
    first, again, other = (list(islice(word_problems(False, s), 40)) for s in (seed, seed, seed + 1))
    assert first == again != other


def test_templates_come_in_turn_so_that_few_rows_hold_every_kind():
    categories = [category for category, _, _ in islice(word_problems(True, 0), len(TEMPLATES))]
    assert sorted(categories) == sorted(template.name for template in TEMPLATES)


def test_every_problem_is_filled_in_and_asks():
    for _, messages, answer in islice(word_problems(False, 5), 500):
        assert not re.search(r"[{}]", str([turn["content"] for turn in messages]) + answer)
        assert messages[-1]["content"].endswith("?")


def test_a_long_prompt_is_a_problem_behind_as_many_solved_ones_as_asked_for():
    plain, long = (list(islice(made, 30)) for made in (word_problems(True, 3), long_prompts(True, 3, 6)))
    for (category, messages, answer), (_, short, gold) in zip(long, plain, strict=True):
        assert [turn["role"] for turn in messages] == ["user", "assistant"] * 6 + ["user"]
        assert messages[-3:] == short and answer == gold, "the problem and the solved one of its kind come last"
        assert category in {template.name for template in TEMPLATES}


def test_two_long_prompts_in_a_row_show_other_solved_problems():
    (_, first, _), (_, second, _) = islice(long_prompts(True, 3, 6), 2)
    assert not {turn["content"] for turn in first} & {turn["content"] for turn in second if turn["role"] == "user"}


def test_solved_problems_of_long_prompts_come_from_the_training_side():
    trained = {messages[0]["content"] for _, messages, _ in islice(word_problems(False, 3), 97)}
    for _, messages, _ in islice(long_prompts(True, 3, 5), 40):
        assert all(turn["content"] in trained for turn in messages[:-3] if turn["role"] == "user")
