"""What a draft would accept on replies it has not seen: the estimate that served acceptance is held against.

Called by `loop` after every epoch. It drafts as the engine does and walks each reply as verification does, so it is
the acceptance itself on these replies, not a teacher-forced accuracy.

Shape letters: S = positions, K = draft tokens per step.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from algorithms.contract import Propose
from harness.capture.store import Document, Store


@dataclass
class Walk:
    """Counters of verification, as the engine keeps them (contract section 5): drafts and accepted ones by position."""

    drafts: int
    accepted_per_position: list[int]

    @property
    def acceptance_length_pooled(self) -> float:
        """1 + accepted / drafts over all steps; NaN without a step."""
        return 1 + sum(self.accepted_per_position) / self.drafts if self.drafts else float("nan")


def walk_reply(proposals_SK: Tensor, token_ids: list[int], prompt_tokens: int) -> Walk:
    """Verify one greedy reply with drafts that are known at every position.

    Args:
        proposals_SK: row t holds the drafts made once token t+1 was sampled.
        token_ids: prompt and reply.
        prompt_tokens: where the reply starts; the token there comes from the prefill, not from a verification step.

    A step near the end counts drafts past the reply's last token as rejected; the engine trims or counts them, so
    compare lengths only with that in mind.
    """
    accepted = [0] * proposals_SK.shape[1]
    drafts, sampled = 0, prompt_tokens
    while sampled < len(token_ids) - 1:
        row = proposals_SK[sampled - 1].tolist()
        truth = token_ids[sampled + 1 : sampled + 1 + len(row)]
        run = next((j for j, (a, b) in enumerate(zip(row, truth, strict=False)) if a != b), min(len(row), len(truth)))
        for position in range(run):
            accepted[position] += 1
        drafts += 1
        sampled += run + 1
    return Walk(drafts, accepted)


def estimate(draft: nn.Module, propose: Propose, store: Store, rows: Iterable[int], num_draft_tokens: int) -> Walk:
    """Pooled counters over documents of the store."""
    total = Walk(0, [0] * num_draft_tokens)
    for row in rows:
        walk = _walk_document(draft, propose, store, store[row], num_draft_tokens)
        total.drafts += walk.drafts
        pairs = zip(total.accepted_per_position, walk.accepted_per_position, strict=True)
        total.accepted_per_position = [a + b for a, b in pairs]
    return total


def _walk_document(draft: nn.Module, propose: Propose, store: Store, document: Document, num_draft_tokens: int) -> Walk:
    aux_states_SAH, _ = store.split_states(document)
    proposals_SK = propose(draft, document.token_ids, aux_states_SAH, num_draft_tokens)
    prompt_tokens = int(document.loss_mask.long().argmax()) if document.loss_mask.any() else len(document.token_ids)
    tokens = [*document.token_ids.tolist(), document.last_token]
    return walk_reply(proposals_SK, tokens, prompt_tokens)


@torch.no_grad()
def walk_metrics(walk: Walk) -> dict[str, float | list[float]]:
    """The estimate as plain numbers for the training log."""
    return {
        "acceptance_length_pooled": round(walk.acceptance_length_pooled, 4),
        "acceptance_rate_per_position": [round(count / max(1, walk.drafts), 4) for count in walk.accepted_per_position],
        "drafts": walk.drafts,
    }
