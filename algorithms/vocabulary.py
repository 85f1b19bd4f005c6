"""The draft vocabulary: which verifier tokens a draft can propose, and how its ids map back.

Contract 2.1: target id = draft id + d2t[draft id]; 6.0: the most frequent assistant tokens, ascending.
Shape letters: V = verifier vocabulary, D = draft vocabulary.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def choose(token_counts_V: Tensor, size: int, always: Iterable[int] = ()) -> Tensor:
    """Ids that the draft can propose, ascending int64 [D].

    Args:
        token_counts_V: how often each token stands in the verifier's replies, int64 [V].
        size: D; equal to V for the full vocabulary.
        always: ids that must be kept whatever their count: end of text, end of turn (contract 9, trap 22).

    Raises:
        ValueError: size is not in 1..V, or `always` does not fit.
    """
    vocabulary = token_counts_V.numel()
    forced = sorted(set(always))
    if not 1 <= size <= vocabulary:
        raise ValueError(f"draft_vocab_size = {size} is outside 1..{vocabulary}. Fix: leave it out or use less")
    if len(forced) > size or any(not 0 <= token < vocabulary for token in forced):
        raise ValueError(f"special tokens {forced} do not fit a draft vocabulary of {size} out of {vocabulary}")
    rank = token_counts_V.clone()
    rank[forced] = torch.iinfo(torch.int64).max
    # A stable descending sort fills up with the lowest unused ids.
    return rank.sort(descending=True, stable=True).indices[:size].sort().values


def to_offsets(draft_to_target_D: Tensor) -> Tensor:
    """The `d2t` tensor: target id minus draft id, int64 [D]."""
    return draft_to_target_D - torch.arange(draft_to_target_D.numel(), device=draft_to_target_D.device)


def from_offsets(d2t_D: Tensor) -> Tensor:
    """Target id of each draft id; the inverse of `to_offsets`."""
    return d2t_D + torch.arange(d2t_D.numel(), device=d2t_D.device)


def target_mask(draft_to_target_D: Tensor, vocabulary: int) -> Tensor:
    """The `t2d` tensor: bool [V], true on the kept tokens."""
    mask = torch.zeros(vocabulary, dtype=torch.bool, device=draft_to_target_D.device)
    mask[draft_to_target_D] = True
    return mask
