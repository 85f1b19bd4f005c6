"""Verification of a greedy reply with drafts that are known at every position: what the engine would have accepted.

Called by `parity` on served replies and by `harness.training.validation` on captured ones.

Shape letters: S = tokens of prompt and reply, R = tokens of the reply, K = draft tokens per step.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

Steps = list[int]  # accepted drafts of each verify step of one reply


def walk(drafts_RK: Tensor, token_ids: Sequence[int], prompt_length: int) -> Steps:
    """Accepted drafts of each verify step, had the engine drafted `drafts_RK` on this reply.

    Args:
        drafts_RK: int64 [R, K]; row r holds the guesses of the tokens behind token r of the reply
            (`algorithms.contract.Propose` with `first` at the last token of the prompt). One row less will do.
        token_ids: prompt and reply, [S].
        prompt_length: tokens of the prompt. The prefill samples the first token of the reply.
    """
    accepted, newest = [], prompt_length
    while newest < len(token_ids) - 1:
        truth = torch.tensor(token_ids[newest + 1 : newest + 1 + drafts_RK.shape[1]])
        right = drafts_RK[newest - prompt_length, : len(truth)] == truth
        accepted.append(int(right.long().cumprod(0).sum()))
        newest += accepted[-1] + 1
    return accepted


def inside_reply(accepted_per_step: Sequence[int], reply_length: int) -> Steps:
    """A reply's served steps without the drafts accepted beyond its end: only the last step can have some."""
    left, inside = reply_length - 1, []
    for accepted in accepted_per_step:
        inside.append(min(accepted, max(left, 0)))
        left -= accepted + 1
    return inside


def mean_length(replies: Sequence[Steps]) -> float:
    """Acceptance length pooled over all steps: 1 + accepted / steps; NaN without a step."""
    steps = [accepted for reply in replies for accepted in reply]
    return 1 + sum(steps) / len(steps) if steps else float("nan")
