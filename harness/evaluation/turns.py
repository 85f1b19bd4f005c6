"""Further turns of a conversation, asked after the model's own replies to the turns before (MT-Bench has two).

Called by `measure.py` until `next_turns` gives none. A variant whose first reply differs from the base's is asked
another second prompt: such pairs are no output match (`match.py`), and say nothing against the variant.
"""

from collections.abc import Sequence
from typing import Any

from harness.evaluation.client import Answer

Row = dict[str, Any]
MARK = "#turn"


def turn_of(prompt_id: str) -> int:
    """Which user turn a prompt's id asks: 1 where it does not say."""
    _, mark, number = prompt_id.rpartition(MARK)
    return int(number) if mark else 1


def next_turns(rows: Sequence[Row], answers: Sequence[Answer]) -> list[Row]:
    """The prompts that follow on `rows`: each with its reply and its next user turn; failed replies end theirs.

    Args:
        rows: prompt rows; `turns` holds the user turns still to come.
        answers: their replies, in the same order.

    Returns:
        Rows of the same form, with ids of their own that keep the first turn's.
    """
    following = []
    for row, answer in zip(rows, answers, strict=True):
        left = row.get("turns") or []
        if answer.error is None and left:
            first = row["id"].partition(MARK)[0]
            said = [{"role": "assistant", "content": answer.text}, {"role": "user", "content": left[0]}]
            changes = {"id": f"{first}{MARK}{turn_of(row['id']) + 1}", "turns": left[1:], "answer": None}
            following.append(row | changes | {"messages": [*row["messages"], *said]})
    return following


def turn_names(rows: Sequence[Row]) -> dict[str, str]:
    """`turn 1`, `turn 2` .. by prompt id; nothing where all prompts are first turns."""
    turns = {row["id"]: turn_of(row["id"]) for row in rows}
    return {key: f"turn {turn}" for key, turn in turns.items()} if max(turns.values(), default=1) > 1 else {}


def longest_conversation(row: Row) -> list[dict[str, str]]:
    """The messages of a row's last turn, with empty replies: their tokens plus a reply's for each turn before."""
    messages = list(row["messages"])
    for turn in row.get("turns") or []:
        messages += [{"role": "assistant", "content": ""}, {"role": "user", "content": turn}]
    return messages
