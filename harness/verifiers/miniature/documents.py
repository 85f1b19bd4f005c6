"""Conversations as token ids, the assistant's marked, in batches of like length.

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
LENGTH_NOISE = 20  # tokens: like lengths waste little, but a batch should not hold one kind of text alone


@dataclass(frozen=True)
class Document:
    """Token ids of a conversation, which of them the assistant says (end of turn included), and its images."""

    ids: list[int]
    said: list[bool]
    images: tuple[str, ...] = ()


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
    written = tokenizer(f"{family.opening}{text}{family.end}", add_special_tokens=False).input_ids
    said = [False] * len(prompt) + [True] * len(written)
    for turn in asked:
        if turn["role"] == "assistant":
            earlier = tokenizer(turn["content"], add_special_tokens=False).input_ids
            start = _place_of(earlier, prompt)
            said[start : start + len(earlier) + 1] = [True] * (len(earlier) + 1)
    return Document([*prompt, *written], said)


def _place_of(part: list[int], ids: list[int]) -> int:
    """Where `part` stands in `ids`: special tokens around a turn make it the same ids there as alone."""
    return next(start for start in range(len(ids)) if ids[start : start + len(part)] == part)


def batches(rows: list[Document], tokens: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(ids_BS, said_BS) of at most `tokens` tokens with padding, which nobody says. One pass."""
    return map(padded, packs_of(rows, tokens, seed))


def packs_of(rows: list[Document], tokens: int, seed: int) -> list[list[Document]]:
    """The documents of each batch, in mixed order."""
    shuffle = random.Random(seed)
    packs: list[list[Document]] = []
    pack: list[Document] = []
    for row in sorted(rows, key=lambda row: len(row.ids) + shuffle.uniform(0, LENGTH_NOISE)):
        if pack and (len(pack) + 1) * max(len(each.ids) for each in [*pack, row]) > tokens:
            packs.append(pack)
            pack = []
        pack.append(row)
    packs.append(pack)
    return shuffle.sample(packs, len(packs))


def padded(rows: list[Document]) -> tuple[Tensor, Tensor]:
    """(ids_BS, said_BS), padded on the right with token 0."""
    longest = max(len(row.ids) for row in rows)
    ids_BS = torch.zeros(len(rows), longest, dtype=torch.long)
    said_BS = torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        ids_BS[number, : len(row.ids)] = torch.tensor(row.ids)
        said_BS[number, : len(row.ids)] = torch.tensor(row.said)
    return ids_BS, said_BS
