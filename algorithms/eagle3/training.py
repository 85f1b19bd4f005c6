"""EAGLE-3 learns by training-time test: it drafts several steps from every reply position and is scored on each.

Contract 6.1. Row i reads token i+1 and the verifier's state i; at step k it reads the true token i+1+k and its own
state, and is scored against the verifier's distribution at position i+1+k. Replies are the verifier's greedy ones, so
the true token is what a draft accepted so far has proposed: teacher forcing equals serving, given acceptance.

Shape letters: S = positions, R = rows that are scored, P = target positions, D = draft vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from algorithms.contract import Batch, LossOutput, Pack, VerifierWeights
from algorithms.eagle3.config import Config
from algorithms.eagle3.model import Draft
from algorithms.features import Teacher
from algorithms.losses import Scores, Targets, head_loss


@dataclass(frozen=True)
class Rows:
    """The slots of a pack and the targets of those that are scored.

    Attributes:
        slot_S: positions that have a next token in their document: where the draft reads.
        scored_R: indices into `slot_S` of the slots whose input token is the assistant's.
        target_RK: position whose verifier distribution step k must match; clamped where `valid_RK` is false.
        valid_RK: whether that position is an assistant token of the same document.
    """

    slot_S: Tensor
    scored_R: Tensor
    target_RK: Tensor
    valid_RK: Tensor


def rows_of(batch: Batch | Pack, steps: int) -> Rows:
    """Find slots, scored rows and their targets; the loss mask follows the input token (contract 6.1)."""
    document_S, mask_S = batch.document_S, batch.loss_mask_S
    slot_S = ((document_S[:-1] == document_S[1:]) & (document_S[:-1] >= 0)).nonzero().squeeze(1)
    scored_R = mask_S[slot_S + 1].nonzero().squeeze(1)
    first_R = slot_S[scored_R] + 1
    target_RK = first_R[:, None] + torch.arange(steps, device=first_R.device)
    inside_RK = target_RK < document_S.numel()
    target_RK = target_RK.clamp(max=document_S.numel() - 1)
    same_RK = document_S[target_RK] == document_S[first_R][:, None]
    # One invalid step ends a branch: what follows it would be drafted from a token that is not the reply's.
    valid_RK = (inside_RK & same_RK & mask_S[target_RK]).long().cumprod(dim=1).bool()
    return Rows(slot_S, scored_R, target_RK, valid_RK)


def unroll(draft: Draft, batch: Batch, rows: Rows, steps: int) -> Tensor:
    """What the head reads at each step, [K, R, H]; every step after the first reads the true token."""
    slot_S = rows.slot_S
    branches = draft.start(
        batch.token_ids_S[slot_S + 1], batch.aux_states_SAH[slot_S], batch.document_S[slot_S], rows.scored_R
    )
    outputs = [branches.output_RH]
    for step in range(1, steps):
        draft.extend(branches, batch.token_ids_S[rows.target_RK[:, step]])
        outputs.append(branches.output_RH)
    return torch.stack(outputs)


def loss(draft: Draft, teacher: Teacher, batch: Batch, config: Config) -> LossOutput:
    """Sum over steps k of decay^k times the mean loss of its valid rows.

    Metrics: `loss_step_k` and `agree_step_k`, the share of rows whose first choice is the verifier's first choice
    within the draft vocabulary, at step k from 1; both are means over the valid rows of the pack.
    """
    whole = rows_of(batch.whole, config.ttt_steps)
    if whole.scored_R.numel() == 0:
        raise ValueError("a batch without an assistant token to score. Fix: drop such documents before packing")
    rows = rows_of(batch, config.ttt_steps) if batch.pack else whole
    output_KRH = unroll(draft, batch, rows, config.ttt_steps)
    share_KR = rows.valid_RK.T / whole.valid_RK.sum(dim=0).clamp(min=1)[:, None]
    decay_K = config.step_loss_decay ** torch.arange(config.ttt_steps, device=share_KR.device)
    position_P, target_RK = rows.target_RK.unique(return_inverse=True)
    scores = head_loss(
        [(output_KRH.flatten(0, 1), draft.lm_head.weight.to(output_KRH.dtype))],
        Targets(teacher, batch.last_state_SH[position_P]),
        target_RK.T.flatten(),
        (share_KR * decay_K[:, None]).flatten(),
        config.loss_weights,
    )
    return LossOutput(scores.loss, _metrics(scores, share_KR))


def _metrics(scores: Scores, share_KR: Tensor) -> dict[str, float]:
    agrees_R = scores.candidate_RC[:, 0] == scores.target_choice_R
    found = {"loss": scores.loss_R, "agree": agrees_R}
    means = {name: (value.view(share_KR.shape) * share_KR).sum(dim=1).tolist() for name, value in found.items()}
    return {f"{name}_step_{step + 1}": mean[step] for step in range(len(share_KR)) for name, mean in means.items()}


def objective(config: Config, verifier: VerifierWeights, draft: Draft) -> Callable[[Batch], LossOutput]:
    """`loss` with everything but the batch filled in."""
    teacher = Teacher.of(verifier, draft.draft_to_target_D)
    return partial(loss, draft, teacher, config=config)
