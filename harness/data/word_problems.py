"""Arithmetic word problems of the project's own: one to three steps, exact answers in GSM8K's form, no network.

Called by `sources.py`. A problem's numbers decide its split (`is_heldout`), so no held-out problem of a template has
the numbers of a training problem, whatever the seed. Each problem follows a solved one of its kind, always from the
training side: small verifiers then answer in its form and stop, which instructions alone did not bring about.
"""

import hashlib
import itertools
import operator
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
HELDOUT_SHARE = 0.25
NAMES = (
    "Ava", "Ben", "Carla", "Diego", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kira", "Liam", "Mona",
    "Noah", "Olga", "Pedro", "Rosa", "Sam", "Tara", "Umar", "Vera", "Will", "Yuki", "Zoe",
)  # fmt: skip
THINGS = (
    "apples", "marbles", "pencils", "stickers", "books", "coins", "shells", "cookies", "tickets", "balloons",
    "stamps", "buttons", "cards", "flowers", "bottles", "candles",
)  # fmt: skip
PLACES = (
    "bakery", "school", "farm", "library", "toy shop", "garden", "office", "market",
)  # fmt: skip
SOLVED = 97  # solved problems that long prompts take in turn
TELLINGS = 6  # problems at most with the same numbers, each with other names
Problem = tuple[str, list[dict[str, str]], str]


@dataclass(frozen=True)
class Template:
    """One kind of problem.

    Attributes:
        name: category of the rows.
        ranges: free numbers and their values.
        question: text with {numbers}, {a} and {b} (people), {things} and {place}.
        steps: (name of the result, calculation of two operands, sentence about it); the last result is the answer.
        given: numbers of the text that follow from the free ones, as (name, calculation): divisions come out even.
    """

    name: str
    ranges: dict[str, range]
    question: str
    steps: tuple[tuple[str, str, str], ...]
    given: tuple[tuple[str, str], ...] = ()


TEMPLATES = (
    Template(
        "give",
        {"left": range(2, 12), "y": range(2, 10)},
        "{a} has {x} {things}. {a} gives {y} {things} to {b}. How many {things} does {a} have left?",
        (("answer", "x - y", "{a} has {work} {things} left."),),
        (("x", "left + y"),),
    ),
    Template(
        "together",
        {"x": range(2, 13), "y": range(2, 13)},
        "{a} has {x} {things}. {b} has {y} {things}. How many {things} do they have together?",
        (("total", "x + y", "Together they have {work} {things}."),),
    ),
    Template(
        "years",
        {"x": range(4, 20), "y": range(2, 10)},
        "{a} is {x} years old. How old will {a} be in {y} years?",
        (("age", "x + y", "{a} will be {work} years old."),),
    ),
    Template(
        "boxes",
        {"x": range(2, 11), "y": range(2, 11)},
        "{a} buys {x} boxes of {things}. Each box holds {y} {things}. How many {things} does {a} buy?",
        (("total", "x * y", "{a} buys {work} {things}."),),
    ),
    Template(
        "days",
        {"x": range(2, 11), "y": range(2, 11)},
        "{a} reads {x} pages every day. How many pages does {a} read in {y} days?",
        (("total", "x * y", "{a} reads {work} pages."),),
    ),
    Template(
        "price",
        {"x": range(2, 11), "y": range(2, 11)},
        "At the {place} one ticket costs {x} dollars. {a} buys {y} tickets. How many dollars does {a} pay?",
        (("total", "x * y", "{a} pays {work} dollars."),),
    ),
    Template(
        "share",
        {"x": range(2, 11), "each": range(2, 11)},
        "{a} has {total} {things}. {a} shares them equally among {x} friends. How many {things} does each friend get?",
        (("answer", "total / x", "Each friend gets {work} {things}."),),
        (("total", "x * each"),),
    ),
    Template(
        "lose",
        {"x": range(4, 11), "y": range(2, 11), "z": range(2, 5)},
        "{a} finds {x} {things} on Monday and {y} {things} on Tuesday. Then {a} loses {z} {things}. "
        "How many {things} does {a} have now?",
        (("found", "x + y", "{a} finds {work} {things}."), ("left", "found - z", "{a} has {work} {things} now.")),
    ),
    Template(
        "bus",
        {"x": range(8, 20), "y": range(2, 7), "z": range(2, 7)},
        "A bus leaves the {place} with {x} people. At the next stop {y} people get off and {z} people get on. "
        "How many people are on the bus now?",
        (("stay", "x - y", "{work} people stay on the bus."), ("now", "stay + z", "{work} people are on the bus now.")),
    ),
    Template(
        "makes",
        {"x": range(2, 10), "y": range(2, 6), "z": range(2, 10)},
        "{a} makes {x} {things} a day for {y} days and then {z} more {things}. How many {things} does {a} make in all?",
        (("made", "x * y", "{a} makes {work} {things}."), ("all", "made + z", "In all {a} makes {work} {things}.")),
    ),
    Template(
        "spend",
        {"x": range(3, 10), "y": range(2, 6), "z": range(2, 6)},
        "{a} saves {x} dollars a week for {y} weeks. Then {a} spends {z} dollars at the {place}. "
        "How many dollars are left?",
        (("saved", "x * y", "{a} saves {work} dollars."), ("left", "saved - z", "{work} dollars are left.")),
    ),
    Template(
        "times",
        {"x": range(2, 11), "y": range(2, 7)},
        "{a} has {x} {things}. {b} has {y} times as many {things} as {a}. How many {things} do they have together?",
        (("more", "x * y", "{b} has {work} {things}."), ("total", "x + more", "Together they have {work} {things}.")),
    ),
    Template(
        "change",
        {"x": range(2, 8), "y": range(2, 8), "change": range(2, 8)},
        "At the {place} one ticket costs {x} dollars. {a} buys {y} tickets and pays with {paid} dollars. "
        "How many dollars does {a} get back?",
        (
            ("cost", "x * y", "The tickets cost {work} dollars."),
            ("back", "paid - cost", "{a} gets back {work} dollars."),
        ),
        (("price", "x * y"), ("paid", "price + change")),
    ),
    Template(
        "three_days",
        {"x": range(3, 9), "y": range(3, 9), "z": range(3, 9), "w": range(2, 5)},
        "{a} picks {x} {things} on Monday, {y} {things} on Tuesday and {z} {things} on Wednesday. "
        "{a} gives {w} {things} to {b}. How many {things} are left?",
        (
            ("two", "x + y", "On Monday and Tuesday {a} picks {work} {things}."),
            ("three", "two + z", "With Wednesday that makes {work} {things}."),
            ("left", "three - w", "{work} {things} are left."),
        ),
    ),
    Template(
        "hens",
        {"x": range(2, 7), "y": range(2, 7), "z": range(2, 5), "w": range(2, 5)},
        "{a} has {x} hens. Each hen lays {y} eggs a week. {a} collects eggs for {z} weeks and breaks {w} of them. "
        "How many eggs are left?",
        (
            ("week", "x * y", "The hens lay {work} eggs a week."),
            ("all", "week * z", "{a} collects {work} eggs."),
            ("left", "all - w", "{work} eggs are left."),
        ),
    ),
)


def _evaluate(calculation: str, numbers: dict[str, int]) -> tuple[int, str]:
    """Value of "left op right" and the calculation in digits."""
    left, sign, right = calculation.split()
    return OPERATORS[sign](numbers[left], numbers[right]), f"{numbers[left]}{sign}{numbers[right]}"


def solve(template: Template, numbers: dict[str, int], words: dict[str, str]) -> str:
    """The worked solution in GSM8K's form: one calculation a line, `#### N` on the last."""
    known, lines = dict(numbers), []
    for result, calculation, sentence in template.steps:
        known[result], digits = _evaluate(calculation, known)
        spaced = " ".join(str(known.get(part, part)) for part in calculation.split())
        work = f"{spaced} = <<{digits}={known[result]}>>{known[result]}"
        lines.append(sentence.format(work=work, **words, **known))
    return "\n".join([*lines, f"#### {known[template.steps[-1][0]]}"])


def is_heldout(template: str, numbers: tuple[int, ...]) -> bool:
    """Which split the numbers of a template belong to: a fixed hash of them, the same for every seed."""
    digest = hashlib.sha256(f"{template}:{','.join(map(str, numbers))}".encode()).digest()
    return digest[0] < 256 * HELDOUT_SHARE


@cache
def _tuples(template: str, heldout: bool) -> tuple[tuple[int, ...], ...]:
    ranges = next(known.ranges for known in TEMPLATES if known.name == template)
    return tuple(numbers for numbers in itertools.product(*ranges.values()) if is_heldout(template, numbers) == heldout)


def _render(template: Template, values: tuple[int, ...], shuffle: random.Random) -> tuple[str, str]:
    """Question and worked solution for the free numbers `values`, with names and things drawn from `shuffle`."""
    numbers = dict(zip(template.ranges, values, strict=True))
    for name, calculation in template.given:
        numbers[name] = _evaluate(calculation, numbers)[0]
    a, b = shuffle.sample(NAMES, 2)
    words = {"a": a, "b": b, "things": shuffle.choice(THINGS), "place": shuffle.choice(PLACES)}
    return template.question.format(**words, **numbers), solve(template, numbers, words)


def _problems(template: Template, heldout: bool, shuffle: random.Random) -> Iterator[Problem]:
    """`TELLINGS` rounds over all numbers of the split, each round in another order and with other names."""
    tuples, examples = _tuples(template.name, heldout), _tuples(template.name, False)
    for _ in range(TELLINGS):
        for values in shuffle.sample(tuples, len(tuples)):
            shown = shuffle.choice([numbers for numbers in examples if numbers != values])
            asked, solution = _render(template, shown, shuffle)
            question, answer = _render(template, values, shuffle)
            example = [{"role": "user", "content": asked}, {"role": "assistant", "content": _plain(solution)}]
            yield template.name, [*example, {"role": "user", "content": question}], answer


def _plain(solution: str) -> str:
    """A solution without GSM8K's calculator marks, as a person would write it."""
    return re.sub(r"<<.*?>>", "", solution)


def word_problems(heldout: bool, seed: int) -> Iterator[Problem]:
    """All problems of a split as (category, messages, answer), one of each template in turn until all are used up.

    The messages are a solved training problem of the same template and then the problem itself.
    """
    streams = [
        _problems(template, heldout, random.Random(f"{seed}:{heldout}:{template.name}")) for template in TEMPLATES
    ]
    for turn in itertools.zip_longest(*streams):
        yield from (problem for problem in turn if problem is not None)


def long_prompts(heldout: bool, seed: int, examples: int) -> Iterator[Problem]:
    """The same problems, each behind `examples` solved training problems of all kinds, the last one of its own."""
    solved = itertools.cycle([messages[:2] for _, messages, _ in itertools.islice(word_problems(False, seed), SOLVED)])
    for category, messages, answer in word_problems(heldout, seed):
        before = itertools.islice(solved, examples - 1)
        yield category, [*itertools.chain.from_iterable(before), *messages], answer
