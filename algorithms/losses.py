"""Losses between a draft's logits and the verifier's distribution, in float32 and in chunks of rows.

The output head is as wide as the vocabulary, so its logits are the largest tensor of training by far. The function
here computes loss and gradient of a chunk at once and keeps only the gradient of the draft's output, [R, H]: no
[R, D] tensor waits for the backward pass.

Shape letters: R = rows, P = target positions, H = width, D = draft vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK_ROWS = 512


class _HeadKL(torch.autograd.Function):
    """Weighted sum over rows of KL(teacher || softmax(hidden @ head.T)), with the gradient made on the way."""

    @staticmethod
    def forward(  # noqa: D102 - see head_kl
        ctx: Any, hidden_RH: Tensor, head_DH: Tensor, teacher_PD: Tensor, target_R: Tensor, weight_R: Tensor
    ) -> tuple[Tensor, Tensor]:
        weighted = weight_R.new_zeros(())
        guesses, hidden_gradients = [], []
        head_gradient = torch.zeros_like(head_DH, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for rows in torch.arange(hidden_RH.shape[0]).split(CHUNK_ROWS):
            part = slice(int(rows[0]), int(rows[-1]) + 1)
            logits = (hidden_RH[part] @ head_DH.T).float()
            guesses.append(logits.argmax(dim=-1))
            log_q, log_p = logits.log_softmax(dim=-1), teacher_PD[target_R[part]].float()
            p, weight = log_p.exp(), weight_R[part]
            weighted += ((p * (log_p - log_q)).sum(dim=-1) * weight).sum()
            # d KL / d logits = softmax(logits) * sum(p) - p; p sums to one up to rounding.
            slope = ((log_q.exp() - p) * weight[:, None]).to(head_DH.dtype)
            hidden_gradients.append(slope @ head_DH)
            if head_gradient is not None:
                head_gradient += (slope.T @ hidden_RH[part]).float()
        ctx.save_for_backward(torch.cat(hidden_gradients), head_gradient)
        guess_R = torch.cat(guesses)
        ctx.mark_non_differentiable(guess_R)
        return weighted, guess_R

    @staticmethod
    def backward(ctx: Any, weighted_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, head_gradient = ctx.saved_tensors
        head = None if head_gradient is None else head_gradient * weighted_gradient
        return hidden_gradient * weighted_gradient, head, None, None, None


def head_kl(hidden_RH: Tensor, head_DH: Tensor, teacher_PD: Tensor, target_R: Tensor, weight_R: Tensor) -> tuple[Tensor, Tensor]:
    """KL divergence of the draft from the verifier through the output head.

    Args:
        hidden_RH: the draft's normed output, [R, H], in the head's dtype.
        head_DH: output head, [D, H]; gets a gradient only if it asks for one.
        teacher_PD: log-probabilities of the verifier over the draft vocabulary, one row per target position, [P, D].
        target_R: which of them each row should match, int64 [R].
        weight_R: float32 [R]; 0 leaves a row out.

    Returns:
        (sum over rows of weight * KL(p || q) in nats, draft ids of the largest logits int64 [R]).
    """
    return _HeadKL.apply(hidden_RH, head_DH, teacher_PD, target_R, weight_R)
