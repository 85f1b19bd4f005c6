"""How the engine drafts with EAGLE-3 (contract 4.1, 4.2): once plainly for one position, once for all positions.

`draft_steps` is the readable truth that the tests hold against vLLM; `propose` gives the same drafts for every
position of a reply at once and is what train/serve parity and validation use.

Shape letters: S = positions, A = verifier states, H = width, K = draft tokens, D = draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.eagle3.model import Draft


@dataclass(frozen=True)
class Drafted:
    """What one proposal computed, step by step.

    Attributes:
        token_ids_K: drafts as target ids.
        output_KH: what the head read at each step.
        logits_KD: over the draft vocabulary.
    """

    token_ids_K: Tensor
    output_KH: Tensor
    logits_KD: Tensor


@torch.no_grad()
def draft_steps(draft: Draft, token_ids_S: Tensor, aux_states_SAH: Tensor, num_draft_tokens: int) -> Drafted:
    """The drafts of one engine step.

    Args:
        token_ids_S: x_0 .. x_m, the last one just sampled: one token more than there are states.
        aux_states_SAH: the verifier's states at 0 .. m-1.
        num_draft_tokens: K.
    """
    device = token_ids_S.device
    document_S = torch.zeros(aux_states_SAH.shape[0], dtype=torch.long, device=device)
    last = torch.tensor([aux_states_SAH.shape[0] - 1], device=device)
    branches = draft.start(token_ids_S[1:], aux_states_SAH, document_S, last)
    tokens: list[Tensor] = []
    outputs, logits = [], []
    for step in range(num_draft_tokens):
        if step:
            draft.extend(branches, tokens[-1])
        outputs.append(branches.output_RH[0])
        logits.append(draft.lm_head(branches.output_RH)[0])
        tokens.append(draft.draft_to_target_D[logits[-1].argmax()][None])
    return Drafted(torch.cat(tokens), torch.stack(outputs), torch.stack(logits))


@torch.no_grad()
def propose(draft: Draft, token_ids_S: Tensor, aux_states_SAH: Tensor, num_draft_tokens: int, first: int = 0) -> Tensor:
    """Drafts at every position from `first`; see `algorithms.contract.Propose`. int64 [S-1-first, K], target ids."""
    slots = token_ids_S.numel() - 1
    device = token_ids_S.device
    document_S = torch.zeros(slots, dtype=torch.long, device=device)
    rows_R = torch.arange(first, slots, device=device)
    branches = draft.start(token_ids_S[1:], aux_states_SAH[:slots], document_S, rows_R)
    tokens: list[Tensor] = []
    for step in range(num_draft_tokens):
        if step:
            draft.extend(branches, tokens[-1])
        tokens.append(draft.draft_to_target_D[draft.lm_head(branches.output_RH).argmax(dim=-1)])
    return torch.stack(tokens, dim=1)
