"""The prompt sets of vLLM's own test of speculators checkpoints: repeat a word, and GSM8K after five solved problems.

Called by `sources.py`; gates that were published for that test (accuracy, share of equal replies) need these prompts.
Both are held out only: the five solved problems are training rows of GSM8K.
"""

from collections.abc import Iterator
from typing import Any

from harness.data.benchmarks import gsm8k
from harness.data.instructions import TOPICS

SHOTS = 5
REPETITIONS = 10


def repeat_word() -> Iterator[str]:
    """User turns whose greedy reply is the same word over and over: any draft should follow it."""
    for word in TOPICS:
        if " " not in word:
            yield (
                f"Repeat the word '{word}' {REPETITIONS} times. Write nothing but the word, in lower case, with spaces "
                "between and without quotes."
            )


def _problem(row: dict[str, Any], solved: bool) -> str:
    return f"Question: {row['question']}\nAnswer:{' ' + row['answer'] if solved else ''}"


def gsm8k_5shot(folder: str | None) -> list[dict[str, Any]]:
    """GSM8K's test problems as rows of `text` and `answer`, each after the first five training problems, solved.

    Raises:
        Unavailable: the data set cannot be had.
    """
    shots = [_problem(row, solved=True) for row in gsm8k(folder, "train")[:SHOTS]]
    return [
        {"text": "\n\n".join([*shots, _problem(row, solved=False)]), "answer": row["answer"]}
        for row in gsm8k(folder, "test")
    ]
