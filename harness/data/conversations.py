"""Chat sets of others as prompts: what the person said, up to a turn that the verifier answers anew.

Called by `sources.py`. Both layouts that such sets come in are read: `messages` with role and content (UltraChat), and
`conversations` with from and value (ShareGPT, Magpie, PerfectBlend).
"""

from collections.abc import Sequence
from typing import Any

from harness.data.benchmarks import from_hub, local_or_hub
from harness.sections.data import ChatSource

ROLE_OF = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
Message = dict[str, str]


def conversations(source: ChatSource, folder: str | None) -> Sequence[dict[str, Any]]:
    """The rows of a set: `<folder>/<name>/<split>.jsonl` where there is one, else from the hub.

    Raises:
        Unavailable: neither is to be had.
    """
    which = {} if source.file is None else {"data_files": [source.file]}
    return local_or_hub(
        folder, f"{source.name}/{source.split}.jsonl",
        lambda: from_hub(source.id, source.revision, source.split, **which),
    )  # fmt: skip


def prompt_of(row: dict[str, Any], turns: int) -> list[Message]:
    """The conversation up to its user turn number `turns`, or the last one there is; empty where there is none.

    A system turn at the start is kept. What stands out of order ends the conversation: two user turns in a row would be
    refused by strict templates, and an assistant's turn at the start answers nothing.
    """
    messages: list[Message] = []
    asked = 0
    for role, text in _said(row):
        if role == "system" and not messages:
            messages.append({"role": role, "content": text})
        elif role == ("assistant" if asked and messages[-1]["role"] == "user" else "user") and text.strip():
            asked += role == "user"
            messages.append({"role": role, "content": text})
        else:
            break
        if asked == turns and role == "user":
            break
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    return messages


def _said(row: dict[str, Any]) -> list[tuple[str, str]]:
    """(role, text) of every turn, roles as chat templates call them."""
    if row.get("messages"):
        return [(turn["role"], turn["content"] or "") for turn in row["messages"]]
    turns = row.get("conversations") or []
    return [(ROLE_OF.get(turn["from"], turn["from"]), turn["value"] or "") for turn in turns]
