"""P-EAGLE learns every drafted position at once: masks behind reply positions, fewer at every depth ("COD sampling").

Contract 6.2. Entry (i, d) is row i at depth d. At depth 0 it reads token i+1 and the verifier's state i, as the engine
does; deeper it reads the mask at position i+d, and sees the true context up to i and its own masks before it. It is
scored against the verifier's distribution at position i+1+d. Which rows go deeper is drawn anew for every batch, and
each depth draws from the rows of the one before, so that every mask that an entry sees is computed.

Shape letters: S = positions, R = rows that are scored, K = depths, E = entries, P = target positions, H = width.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from algorithms.contract import Batch, LossOutput, VerifierWeights, renumber
from algorithms.eagle3.training import Rows, rows_of
from algorithms.features import Teacher
from algorithms.losses import Scores, Targets, head_loss
from algorithms.peagle.config import Config
from algorithms.peagle.model import Draft


def sample_depths(valid_RK: Tensor, config: Config, draw: int) -> list[Tensor]:
    """The rows that are computed at each depth, ascending int64 indices; as many depths as have any.

    Depth 0 has all rows. Of the n that were drawn to go deeper, at most `max_anchors`, depth d keeps
    floor((n - d) * max(sample_ratio^d, sample_ratio_min)) at random.

    Args:
        valid_RK: whether row r is scored at depth d; true at depth 0.
        draw: seed.
    """
    generator = torch.Generator("cpu").manual_seed(draw)

    def some(rows: Tensor, count: int) -> Tensor:
        drawn = torch.randperm(rows.numel(), generator=generator, device="cpu")[: max(count, 0)]
        return rows[drawn.to(rows.device)].sort().values

    every = torch.arange(valid_RK.shape[0], device=valid_RK.device)
    pool = some(every, config.max_anchors)
    seeds, chosen = pool.numel(), [every]
    for depth in range(1, valid_RK.shape[1]):
        share = max(config.sample_ratio**depth, config.sample_ratio_min)
        pool = some(pool[valid_RK[pool, depth]], int((seeds - depth) * share))
        if pool.numel() == 0:
            break
        chosen.append(pool)
    return chosen


def own_rows(batch: Batch, whole: Rows, chosen: list[Tensor]) -> tuple[Rows, list[Tensor]]:
    """The part of the pack's rows and of those chosen at each depth that the batch holds."""
    if batch.pack is None:
        return whole, chosen
    own_R = batch.pack.own_S[whole.slot_S[whole.scored_R]]
    return rows_of(batch, whole.valid_RK.shape[1]), [renumber(kept, own_R) for kept in chosen]


def entry_outputs(draft: Draft, batch: Batch, rows: Rows, chosen: list[Tensor]) -> Tensor:
    """What the head reads of every entry, [E, H], depth after depth. Unscored rows only give keys and values."""
    slot_S = rows.slot_S
    branches = draft.start(
        batch.token_ids_S[slot_S + 1], batch.aux_states_SAH[slot_S], batch.document_S[slot_S], rows.scored_R
    )
    kept = [torch.searchsorted(before, rows_R) for before, rows_R in pairwise(chosen)]
    return torch.cat((branches.output_RH, draft.masks(branches, kept))) if kept else branches.output_RH


def loss(draft: Draft, teacher: Teacher, batch: Batch, config: Config) -> LossOutput:
    """Mean loss over all entries of all depths.

    Metrics: `loss_step_k` and `agree_step_k`, the share of entries whose first choice is the verifier's first choice
    within the draft vocabulary, at depth k - 1; both are means over the entries of the pack.
    """
    whole = rows_of(batch.whole, config.num_depths)
    if whole.scored_R.numel() == 0:
        raise ValueError("a batch without an assistant token to score. Fix: drop such documents before packing")
    drawn = sample_depths(whole.valid_RK, config, batch.draw)
    counts = [kept.numel() for kept in drawn]
    rows, chosen = own_rows(batch, whole, drawn)
    output_EH = entry_outputs(draft, batch, rows, chosen)
    at_E = torch.cat([rows.target_RK[kept, depth] for depth, kept in enumerate(chosen)])
    position_P, target_E = at_E.unique(return_inverse=True)
    scores = head_loss(
        [(output_EH, draft.lm_head.weight.to(output_EH.dtype))],
        Targets(teacher, batch.last_state_SH[position_P]),
        target_E,
        torch.full(at_E.shape, 1 / sum(counts), device=at_E.device),
        config.loss_weights,
    )
    return LossOutput(scores.loss, _metrics(scores, chosen, counts))


def _metrics(scores: Scores, chosen: list[Tensor], counts: list[int]) -> dict[str, float]:
    agrees_E = (scores.candidate_RC[:, 0] == scores.target_choice_R).float()
    found = {"loss": scores.loss_R, "agree": agrees_E}
    parts = [kept.numel() for kept in chosen]
    means = {
        name: [float(part.sum() / count) for part, count in zip(value.split(parts), counts, strict=True)]
        for name, value in found.items()
    }
    return {f"{name}_step_{step + 1}": mean[step] for step in range(len(counts)) for name, mean in means.items()}


def objective(config: Config, verifier: VerifierWeights, draft: Draft) -> Callable[[Batch], LossOutput]:
    """`loss` with everything but the batch filled in."""
    return partial(loss, draft, Teacher.of(verifier, draft.draft_to_target_D), config=config)
