"""Every prompt source: rows of a split, in an order that the seed decides.

Called by `prepare.py`. A row: id, source, messages, answer (ends in `#### N`) or None, category or None; `turns` holds
later user turns where there are any.
"""

import json
import random
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import islice
from typing import Any

from harness.data.benchmarks import gsm8k, mt_bench
from harness.data.conversations import conversations, prompt_of
from harness.data.instructions import instructions
from harness.data.integration import gsm8k_5shot, repeat_word
from harness.data.pictures import image_questions
from harness.data.word_problems import long_prompts, word_problems
from harness.errors import UserError
from harness.sections.data import AnySource, ChatSource, LongSource

Row = dict[str, Any]
REQUEST = 'Show the calculation and end with "#### <number>".'  # GSM8K's own form
OWN: dict[str, Callable[[bool, int], Iterable[Any]]] = {
    "word_problems": word_problems,
    "instructions": instructions,
    "image_questions": image_questions,
}


def rows_of(
    source: AnySource, heldout: bool, folder: str | None, seed: int, held_out: Container[str] = ()
) -> list[Row]:
    """Exactly `source.rows` distinct rows of the split; a chat set leaves out the questions in `held_out`.

    Raises:
        Unavailable: the data set cannot be had.
        UserError: the source has no such split, or fewer rows than asked for.
    """
    split = "heldout" if heldout else "train"
    made = _distinct(_make(source, heldout, folder, seed, held_out))
    rows = list(islice(made, source.rows))
    if len(rows) < source.rows:
        raise UserError(
            f"data.{split}: {source.name}: rows = {source.rows}, but only {len(rows)} distinct rows exist. "
            f"Fix: ask for {len(rows)} at most"
        )
    return [
        {"id": f"{source.name}-{split}-{number:05d}", "source": source.name, **row} for number, row in enumerate(rows)
    ]


def question_of(row: Row) -> str:
    """The turn that the verifier answers, with its images; two rows with the same one are the same prompt."""
    content = row["messages"][-1]["content"]
    return content if isinstance(content, str) else json.dumps(content)


def _make(source: AnySource, heldout: bool, folder: str | None, seed: int, held_out: Container[str]) -> Iterable[Row]:
    if isinstance(source, ChatSource):
        return (row for row in _chat(source, folder, seed) if question_of(row) not in held_out)
    if isinstance(source, LongSource):
        return _own(long_prompts(heldout, seed, source.examples))
    name = source.source
    if name in OWN:
        return _own(OWN[name](heldout, seed))
    if name == "gsm8k":
        problems = gsm8k(folder, "test" if heldout else "train")
        return _shuffled([_row(f"{row['question']} {REQUEST}", row["answer"], None) for row in problems], seed)
    if not heldout:
        raise UserError(f"data.train: {name} has no training split. Fix: list it under data.heldout")
    if name == "repeat_word":
        return _shuffled([_row(text, None, None) for text in repeat_word()], seed)
    if name == "gsm8k_5shot":
        return _shuffled([_row(row["text"], row["answer"], None) for row in gsm8k_5shot(folder)], seed)
    asked = mt_bench(folder)
    return _shuffled(
        [_row(row["turns"][0], None, row["category"]) | {"turns": row["turns"][1:]} for row in asked], seed
    )


def _own(made: Iterable[Any]) -> Iterator[Row]:
    return ({"messages": messages, "answer": answer, "category": kind} for kind, messages, answer in made)


def _chat(source: ChatSource, folder: str | None, seed: int) -> Iterator[Row]:
    """One at a time: such sets are large. Conversations without a user turn are passed over."""
    held = conversations(source, folder)
    for index in random.Random(seed).sample(range(len(held)), len(held)):
        if messages := prompt_of(held[index], source.turns):
            yield {"messages": messages, "answer": None, "category": None}


def _row(text: str, answer: str | None, category: str | None) -> Row:
    return {"messages": [{"role": "user", "content": text}], "answer": answer, "category": category}


def _shuffled(rows: list[Row], seed: int) -> list[Row]:
    return random.Random(seed).sample(rows, len(rows))


def _distinct(rows: Iterable[Row]) -> Iterator[Row]:
    seen = set()
    for row in rows:
        if question_of(row) not in seen:
            seen.add(question_of(row))
            yield row
