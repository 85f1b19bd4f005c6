"""DSpark learns on DFlash's anchored blocks, with the true previous token in its Markov head (contract 6.5).

Draft i of a block, from 0, predicts x_{a+1+i}: its target is the verifier's distribution at a + i, and its Markov head
reads x_{a+i}: replies are the verifier's greedy ones, so that is what the draft before it was, if it was accepted. Both
layouts of the block have this in common; they differ in which row computes it.

Shape letters: N = scored drafts of all blocks, H = width, r = rank of the Markov head, D = draft vocabulary.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn import functional as F

from algorithms.contract import Batch, LossOutput, VerifierWeights
from algorithms.dflash.training import Anchored, agreement, block_states, step_means, weigh
from algorithms.dspark.config import Config
from algorithms.dspark.model import Draft
from algorithms.features import Teacher
from algorithms.losses import head_loss


def read_rows(draft: Draft, batch: Batch, blocks: Anchored, size: int) -> tuple[Tensor, Tensor]:
    """What the heads read at the scored drafts: (output [N, H], Markov embedding of the true previous token [N, r])."""
    output_NH = block_states(draft, batch, blocks.anchor_R, size, draft.shape.unused_rows, blocks.valid_RK)
    return output_NH, draft.markov_head.embed(batch.token_ids_S[blocks.target_RK[blocks.valid_RK]])


def loss(draft: Draft, teacher: Teacher, batch: Batch, config: Config) -> LossOutput:
    """Mean over the scored drafts of position weight times loss, and the confidence head's cross-entropy beside it.

    Metrics, at the k-th drafted token: `loss_step_k` (without the weight), `agree_step_k` (see `agreement`), and with a
    confidence head `overlap_step_k`, the chance of acceptance under sampling, and `guess_step_k`, what the head says.
    """
    blocks = Anchored.of(batch, config.drafts_of_block, config.max_anchors)
    output_NH, embedding_Nr = read_rows(draft, batch, blocks, config.block_size)
    pairs = [(output_NH, draft.lm_head.weight), (embedding_Nr, draft.markov_head.markov_w2.weight)]
    parts = [(read.to(output_NH.dtype), head.to(output_NH.dtype)) for read, head in pairs]
    targets, target_N = blocks.targets(teacher, batch)
    weight_N = weigh(config, blocks, parts, targets, target_N)
    scores = head_loss(parts, targets, target_N, weight_N, config.loss_weights, overlap=config.confidence_head)
    seen = {"loss": scores.loss_R, "agree": agreement(scores)}
    if draft.confidence_head is None:
        return LossOutput(scores.loss, step_means(blocks, **seen))
    odds_N = draft.confidence_head(output_NH, embedding_Nr)
    # D-PACE weighs by the drafts' own losses, which says nothing about the guess.
    decay_N = weigh(config.model_copy(update={"position_weights": "decay"}), blocks, parts, targets, target_N)
    surprise = F.binary_cross_entropy_with_logits(odds_N, scores.overlap_R, decay_N, reduction="sum")
    seen |= {"overlap": scores.overlap_R, "guess": odds_N.detach().sigmoid()}
    return LossOutput(scores.loss + config.confidence_weight * surprise, step_means(blocks, **seen))


def objective(config: Config, verifier: VerifierWeights, draft: Draft) -> Callable[[Batch], LossOutput]:
    """`loss` with everything but the batch filled in."""
    return partial(loss, draft, Teacher.of(verifier, draft.draft_to_target_D), config=config)
