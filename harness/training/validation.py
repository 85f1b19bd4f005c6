"""What a draft would accept on replies it has not seen: the estimate that served acceptance is held against.

Called by `loop` after every epoch. It drafts as the engine does and walks each reply as verification does, so it is
the acceptance itself on these replies, not a teacher-forced accuracy.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from algorithms.contract import Propose
from harness.capture.store import Store
from harness.evaluation.walk import Steps, walk


@dataclass(frozen=True)
class Walk:
    """Counters of verification, as the engine keeps them (contract section 5): drafts and accepted ones by position."""

    drafts: int
    accepted_per_position: list[int]

    @property
    def acceptance_length_pooled(self) -> float:
        """1 + accepted / drafts over all steps; NaN without a step."""
        return 1 + sum(self.accepted_per_position) / self.drafts if self.drafts else float("nan")


@torch.no_grad()
def estimate(
    draft: nn.Module,
    propose: Propose,
    store: Store,
    rows: Iterable[int],
    num_draft_tokens: int,
    device: torch.device | None = None,
) -> Walk:
    """Pooled counters over documents of the store; drafts past the end of a reply count as rejected.

    `device`: that of the draft, the CPU if None.
    """
    accepted: Steps = []
    for row in rows:
        (document,) = store.documents([row])
        aux_states_SAH, _ = store.split_states(document)
        if not document.loss_mask.any():
            continue  # the prefill gives the only token of the reply
        prompt_length = int(document.loss_mask.long().argmax())
        read = (document.token_ids.to(device), aux_states_SAH.to(device))
        drafts_RK = propose(draft, *read, num_draft_tokens, first=prompt_length - 1).cpu()
        tokens = [*document.token_ids.tolist(), document.last_token]
        accepted += walk(drafts_RK, tokens, prompt_length)
    return Walk(len(accepted), [sum(steps > position for steps in accepted) for position in range(num_draft_tokens)])


def walk_metrics(walk: Walk) -> dict[str, float | list[float]]:
    """The estimate as plain numbers for the training log."""
    return {
        "acceptance_length_pooled": round(walk.acceptance_length_pooled, 4),
        "acceptance_rate_per_position": [round(count / max(1, walk.drafts), 4) for count in walk.accepted_per_position],
        "drafts": walk.drafts,
    }
