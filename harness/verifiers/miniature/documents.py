"""Conversations as token ids, the reply's marked, in batches of like length.

Called by `build`. Shape letters: B = documents of a batch, S = tokens of its longest document.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.verifiers.miniature.corpus import Turns
from harness.verifiers.miniature.families import Family

THINKING_SHARE = 0.15


@dataclass(frozen=True)
class Document:
    """Token ids of a conversation; the reply starts at `reply`."""

    ids: list[int]
    reply: int


def documents(family: Family, tokenizer: Any, conversations: list[Turns], seed: int) -> list[Document]:
    """One document for each conversation; where the family thinks, a share of replies opens with its calculation."""
    shuffle = random.Random(f"{seed}:thinking")
    return [
        _document(family, tokenizer, turns, family.thinks and shuffle.random() < THINKING_SHARE)
        for turns in conversations
    ]


def _document(family: Family, tokenizer: Any, turns: Turns, thinks: bool) -> Document:
    *asked, reply = turns
    mode = {"enable_thinking": True} if thinks else {}
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=True, return_dict=False, **mode)
    text = reply["content"]
    if thinks:
        text = f"<think>\n{text.splitlines()[0]}\n</think>\n\n{text}"
    said = tokenizer(f"{family.opening}{text}{family.end}", add_special_tokens=False).input_ids
    return Document([*prompt, *said], len(prompt))


def batches(rows: list[Document], tokens: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(ids_BS, reply_BS) of at most `tokens` tokens with padding; `reply_BS` is true on replies. One pass."""
    order, packs, pack = sorted(rows, key=lambda row: len(row.ids)), [], []
    for row in order:
        if pack and (len(pack) + 1) * len(row.ids) > tokens:
            packs.append(pack)
            pack = []
        pack.append(row)
    packs.append(pack)
    for chosen in random.Random(seed).sample(packs, len(packs)):
        yield _padded(chosen)


def _padded(rows: list[Document]) -> tuple[Tensor, Tensor]:
    longest = max(len(row.ids) for row in rows)
    ids_BS = torch.zeros(len(rows), longest, dtype=torch.long)
    reply_BS = torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        ids_BS[number, : len(row.ids)] = torch.tensor(row.ids)
        reply_BS[number, row.reply : len(row.ids)] = True
    return ids_BS, reply_BS
