"""Losses between a draft's logits and the verifier's distribution, in float32 and in chunks of rows.

The output head is as wide as the vocabulary, so its logits are the largest tensor of training by far. The function
here computes loss and gradient of a chunk at once and keeps only the gradient of the draft's output, [R, H]: no
[R, D] tensor waits for the backward pass.

Shape letters: R = rows, P = target positions, H = width, D = draft vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Rows of a chunk: its float32 logits stay in a core's cache for vocabularies of a few thousand tokens.
CHUNK_ROWS = 128


@dataclass(frozen=True)
class Targets:
    """The verifier's distributions that a pack is scored against, each held once however often it is used.

    Attributes:
        probability_PD: float32 [P, D], rows sum to one.
        entropy_P: float32 [P], in nats.
    """

    probability_PD: Tensor
    entropy_P: Tensor

    @classmethod
    def of(cls, log_probability_PD: Tensor) -> "Targets":
        """From log-probabilities [P, D]."""
        probability_PD = log_probability_PD.exp()
        return cls(probability_PD, -_row_dot(probability_PD, log_probability_PD))


def _row_dot(a_RD: Tensor, b_RD: Tensor) -> Tensor:
    """Dot product of each row, without a [R, D] tensor in between."""
    return torch.bmm(a_RD[:, None, :], b_RD[:, :, None]).view(-1)


class _HeadKL(torch.autograd.Function):
    """Weighted sum over rows of KL(target || softmax(hidden @ head.T)), with the gradient made on the way."""

    @staticmethod
    def forward(
        ctx: Any, hidden_RH: Tensor, head_DH: Tensor, targets: Targets, target_R: Tensor, weight_R: Tensor
    ) -> tuple[Tensor, Tensor]:
        divergence_R = torch.empty_like(weight_R)
        guess_R = torch.empty_like(target_R)
        hidden_gradient = torch.empty_like(hidden_RH)
        head_gradient = torch.zeros_like(head_DH, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for first in range(0, hidden_RH.shape[0], CHUNK_ROWS):
            part = slice(first, first + CHUNK_ROWS)
            logits = (hidden_RH[part] @ head_DH.T).float()
            p = targets.probability_PD[target_R[part]]
            guess_R[part] = logits.argmax(dim=-1)
            # KL = -H(p) - p . log q, and log q = logits - logsumexp(logits) with p summing to one.
            divergence_R[part] = logits.logsumexp(dim=-1) - _row_dot(p, logits) - targets.entropy_P[target_R[part]]
            # d KL / d logits = softmax(logits) - p
            slope = logits.softmax(dim=-1).sub_(p).mul_(weight_R[part, None]).to(head_DH.dtype)
            torch.mm(slope, head_DH, out=hidden_gradient[part])
            if head_gradient is not None:
                head_gradient += (slope.T @ hidden_RH[part]).float()
        ctx.save_for_backward(hidden_gradient, head_gradient)
        ctx.mark_non_differentiable(guess_R)
        return (divergence_R * weight_R).sum(), guess_R

    @staticmethod
    def backward(ctx: Any, weighted_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, head_gradient = ctx.saved_tensors
        head = None if head_gradient is None else head_gradient * weighted_gradient
        return hidden_gradient * weighted_gradient, head, None, None, None


def head_kl(
    hidden_RH: Tensor, head_DH: Tensor, targets: Targets, target_R: Tensor, weight_R: Tensor
) -> tuple[Tensor, Tensor]:
    """KL divergence of the draft from the verifier through the output head.

    Args:
        hidden_RH: the draft's normed output, [R, H], in the head's dtype.
        head_DH: output head, [D, H]; gets a gradient only if it asks for one.
        targets: distributions of the verifier over the draft vocabulary.
        target_R: which of them each row should match, int64 [R].
        weight_R: float32 [R]; 0 leaves a row out.

    Returns:
        (sum over rows of weight * KL(p || q) in nats, draft ids of the largest logits int64 [R]).
    """
    return _HeadKL.apply(hidden_RH, head_DH, targets, target_R, weight_R)
