"""DFlash learns on blocks anchored at randomly chosen reply tokens, exactly as the engine drafts from them.

Contract 6.3. A block at anchor a reads the true token x_a and mask tokens. Its scored position i, from 0, predicts
x_{a+1+i} and is held against the verifier's distribution at a + i: replies are the verifier's greedy ones, so a block
whose earlier tokens were accepted stands behind exactly these tokens. The blocks, targets and weights here also serve
DFlash-2 and DSpark.

Shape letters: S = positions of a pack, R = blocks, K = scored positions of a block, T = rows of a block, N = scored
rows of all blocks, P = target positions, H = width, D = draft vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from algorithms.contract import Batch, LossOutput, Pack, VerifierWeights, renumber
from algorithms.dflash.config import BlockConfig, Config
from algorithms.dflash.model import Backbone
from algorithms.features import Teacher
from algorithms.losses import Part, Scores, Targets, head_loss
from algorithms.positions import dpace, exponential_decay


@dataclass(frozen=True)
class Anchored:
    """Blocks of a pack and what their positions must match.

    Attributes:
        anchor_R: position of each block's known token, ascending.
        target_RK: position whose verifier distribution scored position i must match: anchor + i. The token there is
            the one before the predicted one. Clamped where `valid_RK` is false.
        valid_RK: whether it is scored: the token there is the assistant's, of the same document and turn.
        scored_K: how many are scored at each position in all of the pack.
    """

    anchor_R: Tensor
    target_RK: Tensor
    valid_RK: Tensor
    scored_K: Tensor

    @classmethod
    def of(cls, batch: Batch, count: int, max_anchors: int) -> "Anchored":
        """Blocks of `count` scored positions at up to `max_anchors` assistant tokens, drawn by `batch.draw`.

        Raises:
            ValueError: there is no assistant token.
        """
        anchor_R = batch.whole.loss_mask_S.nonzero().squeeze(1)
        if anchor_R.numel() == 0:
            raise ValueError("a batch without an assistant token to score. Fix: drop such documents before packing")
        if anchor_R.numel() > max_anchors:
            generator = torch.Generator("cpu").manual_seed(batch.draw)
            drawn = torch.randperm(anchor_R.numel(), generator=generator, device="cpu")[:max_anchors].sort().values
            anchor_R = anchor_R[drawn.to(anchor_R.device)]
        target_RK, valid_RK = _scored(batch.whole, anchor_R, count)
        scored_K = valid_RK.sum(dim=0)
        if batch.pack:
            anchor_R = renumber(anchor_R, batch.pack.own_S)
            target_RK, valid_RK = _scored(batch, anchor_R, count)
        return cls(anchor_R, target_RK, valid_RK, scored_K)

    def targets(self, teacher: Teacher, batch: Batch) -> tuple[Targets, Tensor]:
        """(the verifier's distributions, which of them each scored row must match [N])."""
        position_P, target_N = self.target_RK[self.valid_RK].unique(return_inverse=True)
        return Targets(teacher, batch.last_state_SH[position_P]), target_N


def _scored(batch: Batch | Pack, anchor_R: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`target_RK` and `valid_RK` of blocks at these anchors."""
    positions = batch.document_S.numel()
    target_RK = anchor_R[:, None] + torch.arange(count, device=anchor_R.device)
    inside_RK = target_RK < positions
    target_RK = target_RK.clamp(max=positions - 1)
    same_RK = batch.document_S[target_RK] == batch.document_S[anchor_R][:, None]
    valid_RK = inside_RK & same_RK & batch.loss_mask_S[target_RK]
    return target_RK, valid_RK.long().cumprod(dim=1).bool()


def block_states(
    draft: Backbone, batch: Batch, anchor_R: Tensor, size: int, first: int = 0, kept_RT: Tensor | None = None
) -> Tensor:
    """The draft's states of blocks over the true context; see `Backbone.blocks`."""
    real = batch.document_S >= 0  # padding stands at the end
    context = draft.context(batch.aux_states_SAH[real], batch.document_S[real])
    return draft.blocks(context, batch.token_ids_S[anchor_R], anchor_R, size, first, kept_RT)


def weigh(config: BlockConfig, blocks: Anchored, parts: Sequence[Part], targets: Targets, target_N: Tensor) -> Tensor:
    """Weight of each scored row, float32 [N]: that of its position, over the number of scored rows of the pack.

    Args:
        parts: what the output head reads and its rows, as in `head_loss`; D-PACE asks how sure the draft is.
    """
    if config.position_weights == "decay":
        decay_K = exponential_decay(blocks.valid_RK.shape[1], config.decay_gamma, blocks.valid_RK.device)
        weight_RK = decay_K.expand(blocks.valid_RK.shape)
    else:
        with torch.no_grad():
            unweighted_N = torch.zeros(target_N.shape, device=target_N.device)
            scores = head_loss(parts, targets, target_N, unweighted_N, {"ce": 1.0})
        cross_entropy_RK = torch.zeros(blocks.valid_RK.shape, device=target_N.device)
        cross_entropy_RK[blocks.valid_RK] = scores.loss_R
        weight_RK = dpace(cross_entropy_RK, blocks.valid_RK, config.dpace_alpha)
    return weight_RK[blocks.valid_RK] / blocks.scored_K.sum()


def step_means(blocks: Anchored, **values_N: Tensor) -> dict[str, float]:
    """`<name>_step_k` for k from 1: the mean of each value over the pack's scored rows at the k-th position."""
    share_RK = blocks.valid_RK / blocks.scored_K.clamp(min=1)
    found = {}
    for name, value_N in values_N.items():
        value_RK = torch.zeros_like(share_RK)
        value_RK[blocks.valid_RK] = value_N.float()
        found[name] = (value_RK * share_RK).sum(dim=0).tolist()
    return {f"{name}_step_{k + 1}": mean[k] for k in range(share_RK.shape[1]) for name, mean in found.items()}


def agreement(scores: Scores) -> Tensor:
    """bool [N]: the draft's first choice is the verifier's first choice within the draft vocabulary."""
    return scores.candidate_RC[:, 0] == scores.target_choice_R


def loss(draft: Backbone, teacher: Teacher, batch: Batch, config: Config) -> LossOutput:
    """Mean over the scored rows of position weight times loss.

    Metrics: `loss_step_k` (without the weight) and `agree_step_k` (see `agreement`) at the k-th drafted token.
    """
    blocks = Anchored.of(batch, config.block_size - 1, config.max_anchors)
    # Row 0 reads the known token; its own output is not used.
    output_NH = block_states(draft, batch, blocks.anchor_R, config.block_size, 1, blocks.valid_RK)
    parts = [(output_NH, draft.lm_head.weight.to(output_NH.dtype))]
    targets, target_N = blocks.targets(teacher, batch)
    weight_N = weigh(config, blocks, parts, targets, target_N)
    scores = head_loss(parts, targets, target_N, weight_N, config.loss_weights)
    return LossOutput(scores.loss, step_means(blocks, loss=scores.loss_R, agree=agreement(scores)))


def objective(config: Config, verifier: VerifierWeights, draft: Backbone) -> Callable[[Batch], LossOutput]:
    """`loss` with everything but the batch filled in."""
    return partial(loss, draft, Teacher.of(verifier, draft.draft_to_target_D), config=config)
