"""Conversations that a miniature learns from: word problems with their solution, instructions with a reply, arithmetic.

Called by `build`. Problems and instructions come from the training splits alone, so that held-out prompts stay unseen;
the bare calculations give every sum and product that a solution may need.
"""

import itertools
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice

from harness.data.instructions import FORMS, PEOPLE, TOPICS, instructions
from harness.data.word_problems import NAMES, OPERATORS, PLACES, TEMPLATES, THINGS, word_problems

Turns = list[dict[str, str]]
ADJECTIVES = (
    "old", "quiet", "bright", "gentle", "busy", "strong", "simple", "rare", "clever", "warm", "cold", "useful",
    "colourful", "slow", "quick", "famous",
)  # fmt: skip
USES = (
    "work", "play", "rest", "travel", "learning", "celebration", "trade", "art", "science", "daily life",
)  # fmt: skip
REPLIES = {
    "explain": "{Topic}: a {adjective} thing to know. Think of {use}, and it is easy to see. That is how {person} "
    "can understand {topic}.",
    "describe": "To {person}, {topic} can look {adjective}. It has to do with {use}. Many people remember it.",
    "importance": "People like {topic}, which is {adjective} and good for {use}. For {person} that is reason enough.",
    "facts": "1. It is {adjective}.\n2. It is known everywhere.\n3. It helps with {use}.\n4. It is never dull.\n"
    "5. It is good for {person}.",
    "tips": "1. Start with {use}.\n2. Stay {adjective}.\n3. Ask someone about {topic}.",
    "questions": "1. What is {topic}?\n2. Why is it {adjective}?\n3. Who needs it?\n4. How does it help with {use}?\n"
    "5. What comes next?",
    "poem": "Oh, {topic}, so {adjective} and true,\nyou make {use} feel like new.\n{Person} sings of you.",
    "story": "Once {person} dreamed of {topic}. It was {adjective}, and it changed {use} for ever. The end.",
    "email": "Hello,\nI thought of you and of {topic}. It is {adjective} and good for {use}.\nBest wishes",
    "plan": "First ten minutes: what {topic} means. Next thirty minutes: {use}. Last twenty minutes: why it is "
    "{adjective}.",
    "speech": "Dear friends, let us praise {topic}. It is {adjective}. It serves {use}. Thank you.",
    "compare": "The first, {topic}, is {adjective} and good for {use}. The second, {other}, is not the same at all.",
    "choose": "I choose {topic}. It is {adjective}. It helps with {use}. It is easier than {other}.",
}


def _pick(choices: tuple[str, ...], key: str) -> str:
    return random.Random(key).choice(choices)


def reply_to(form: str, text: str) -> str:
    """What a miniature should say to an instruction of `form`: its words, and a property that the topic always has."""
    pattern = re.escape(FORMS[form])
    for name in ("topic", "person", "other"):
        pattern = pattern.replace(re.escape("{" + name + "}"), f"(?P<{name}>.+?)")
    words = re.fullmatch(pattern, text)
    if words is None:
        raise ValueError(f"{text!r} is no instruction of the form {form}")
    said = {"person": "", "other": ""} | words.groupdict()
    topic, person = said["topic"], said["person"]
    capital = {"Topic": topic[0].upper() + topic[1:], "Person": person[:1].upper() + person[1:]}
    return REPLIES[form].format(
        **said, **capital, adjective=_pick(ADJECTIVES, f"is {topic}"), use=_pick(USES, f"for {topic}")
    )


def solution_text(answer: str) -> str:
    """A worked solution without the calculator marks."""
    return re.sub(r"<<.*?>>", "", answer)


def _problems(seed: int) -> Iterator[Turns]:
    """Every second problem without the solved one before it: more problems in as many tokens."""
    for number, (_, messages, answer) in enumerate(word_problems(False, seed)):
        asked = messages[-1:] if number % 2 else messages
        yield [*asked, {"role": "assistant", "content": solution_text(answer)}]


def _instructions(seed: int) -> Iterator[Turns]:
    for form, messages, _ in instructions(False, seed):
        yield [*messages, {"role": "assistant", "content": reply_to(form, messages[0]["content"])}]


@cache
def facts() -> tuple[tuple[int, str, int, int], ...]:
    """Every (a, sign, b, result) that some problem of the templates takes, each once."""
    found = set()
    for template in TEMPLATES:
        for values in itertools.product(*template.ranges.values()):
            numbers = dict(zip(template.ranges, values, strict=True))
            for name, calculation in (*template.given, *((step[0], step[1]) for step in template.steps)):
                left, sign, right = calculation.split()
                numbers[name] = OPERATORS[sign](numbers[left], numbers[right])
                found.add((numbers[left], sign, numbers[right], numbers[name]))
    return tuple(sorted(found))


def _calculations(shuffle: random.Random) -> Iterator[Turns]:
    """Eight calculations a conversation, each as often as any other."""
    while True:
        chosen = shuffle.sample(facts(), 8)
        asked = ", ".join(f"{a} {sign} {b}" for a, sign, b, _ in chosen)
        said = "\n".join(f"{a} {sign} {b} = {c}" for a, sign, b, c in chosen)
        yield [{"role": "user", "content": f"Calculate {asked}."}, {"role": "assistant", "content": said}]


def _repetitions(shuffle: random.Random) -> Iterator[Turns]:
    """Words and numbers to say again. Copying is what a small model learns last, and every reply needs it."""
    words = [*NAMES, *PLACES, *THINGS, *TOPICS, *PEOPLE]
    while True:
        chosen = shuffle.sample(words, 8) + [str(number) for number in shuffle.sample(range(1, 150), 12)]
        said = " ".join(shuffle.sample(chosen, len(chosen)))
        yield [{"role": "user", "content": f"Say again: {said}."}, {"role": "assistant", "content": f"{said}."}]


def conversations(seed: int, count: int, shares: dict[str, float]) -> list[Turns]:
    """`count` conversations in mixed order.

    Args:
        seed: decides names, numbers and order.
        count: conversations; rows of a source come round again with other names when it is used up.
        shares: of each kind: problems, instructions, calculations, repetitions.
    """
    rows: list[Turns] = []
    for kind, share in shares.items():
        rows += islice(_without_end(kind, seed), round(count * share))
    return random.Random(seed).sample(rows, len(rows))


def _without_end(kind: str, seed: int) -> Iterator[Turns]:
    """Conversations of a kind; a source that is used up comes round again with other names and numbers."""
    if kind in MADE:
        yield from MADE[kind](random.Random(f"{seed}:{kind}"))
    for turn in itertools.count(seed):
        yield from DRAWN[kind](turn)


DRAWN: dict[str, Callable[[int], Iterator[Turns]]] = {"problems": _problems, "instructions": _instructions}
MADE: dict[str, Callable[[random.Random], Iterator[Turns]]] = {
    "calculations": _calculations,
    "repetitions": _repetitions,
}
