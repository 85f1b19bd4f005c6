"""DFlash2 learns as DFlash does, and its selector learns to pick the verifier's token among the draft's candidates.

Contract 6.4. Blocks, targets and weights are DFlash's. The selector is shown the true token before each position: the
one that stands there whenever all drafts before were accepted, which is when the position counts. Its candidates are
those of serving; where the verifier's first choice is not among them it takes the place of the last one.

Shape letters: R = blocks, K = scored positions of a block, N = scored rows of all blocks, C = candidates, H = width,
D = draft vocabulary (all of the verifier's).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from algorithms.contract import Batch, LossOutput, VerifierWeights
from algorithms.dflash.training import Anchored, agreement, block_states, step_means, weigh
from algorithms.dflash2.config import Config
from algorithms.dflash2.model import Draft
from algorithms.features import Teacher
from algorithms.losses import Part, Scores, head_loss


@dataclass(frozen=True)
class Choice:
    """What the selector made of its candidates.

    Attributes:
        loss_N: cross-entropy of the verifier's token among the candidates, float32 with gradient.
        recalled_N: the verifier's token is a candidate in serving too.
        agree_N: it is, and the selector picks it.
    """

    loss_N: Tensor
    recalled_N: Tensor
    agree_N: Tensor


def with_target(candidate_NC: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(candidates that hold the target, its place among them [N], whether it was there before [N])."""
    found_NC = candidate_NC == target_N[:, None]
    recalled_N = found_NC.any(dim=1)
    place_N = torch.where(recalled_N, found_NC.long().argmax(dim=1), candidate_NC.shape[1] - 1)
    return candidate_NC.scatter(1, place_N[:, None], target_N[:, None]), place_N, recalled_N


def select(draft: Draft, part: Part, before_N: Tensor, scores: Scores) -> Choice:
    """Let the selector choose among the candidates of `scores`; its gradient also reaches what the head reads.

    Args:
        part: what the output head reads [N, H], and its rows [D, H].
        before_N: true token before each row.
    """
    output_NH, head_DH = part
    candidate_NC, place_N, recalled_N = with_target(scores.candidate_RC, scores.target_choice_R)
    logit_NC = (head_DH[candidate_NC] @ output_NH[..., None]).squeeze(-1).float()
    selector = draft.candidate_selector
    score_NC = logit_NC + selector.corrections(selector.hidden_projection(output_NH), before_N, candidate_NC)
    loss_N = F.cross_entropy(score_NC, place_N, reduction="none")
    return Choice(loss_N, recalled_N, recalled_N & (score_NC.argmax(dim=1) == place_N))


def loss(draft: Draft, teacher: Teacher, batch: Batch, config: Config) -> LossOutput:
    """Mean over the scored rows of position weight times (loss of the logits + `selector_weight` * selector's loss).

    Metrics at the k-th drafted token: `loss_step_k` and `selector_loss_step_k` without the weight, `recall_step_k` the
    share of rows whose candidates hold the verifier's first choice, `agree_step_k` the share that would pick it,
    `unary_agree_step_k` the same without the selector.
    """
    blocks = Anchored.of(batch, config.block_size - 1, config.max_anchors)
    output_NH = block_states(draft, batch, blocks.anchor_R, config.block_size, 1, blocks.valid_RK)
    part = (output_NH, draft.lm_head.weight.to(output_NH.dtype))
    targets, target_N = blocks.targets(teacher, batch)
    weight_N = weigh(config, blocks, [part], targets, target_N)
    top_k = draft.shape.selector_top_k
    scores = head_loss([part], targets, target_N, weight_N, config.loss_weights, candidates=top_k)
    # The token at the target's position is the one before the predicted one.
    choice = select(draft, part, batch.token_ids_S[blocks.target_RK[blocks.valid_RK]], scores)
    total = scores.loss + config.selector_weight * (choice.loss_N * weight_N).sum()
    values = {
        "loss": scores.loss_R,
        "selector_loss": choice.loss_N.detach(),
        "recall": choice.recalled_N,
        "agree": choice.agree_N,
        "unary_agree": agreement(scores),
    }
    return LossOutput(total, step_means(blocks, **values))


def objective(config: Config, verifier: VerifierWeights, draft: Draft) -> Callable[[Batch], LossOutput]:
    """`loss` with everything but the batch filled in."""
    return partial(loss, draft, Teacher.of(verifier, draft.draft_to_target_D), config=config)
