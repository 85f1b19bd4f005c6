"""How the engine drafts with P-EAGLE (contract 4.3): once plainly for one position, once for all positions.

`draft_steps` is the readable truth that the tests hold against vLLM; `propose` gives the same drafts for every
position of a reply at once and is what train/serve parity and validation use.

Shape letters: S = positions, A = verifier states, H = width, K = draft tokens.
"""

import torch
from torch import Tensor

from algorithms.eagle3.drafting import Drafted
from algorithms.peagle.model import Draft


@torch.no_grad()
def draft_steps(draft: Draft, token_ids_S: Tensor, aux_states_SAH: Tensor, num_draft_tokens: int) -> Drafted:
    """The drafts of one engine step: one causal pass over the context and K - 1 masks behind it.

    Args:
        token_ids_S: x_0 .. x_m, the last one just sampled: one token more than there are states.
        aux_states_SAH: the verifier's states at 0 .. m-1.
        num_draft_tokens: K.
    """
    last = aux_states_SAH.shape[0] - 1
    mask_state, mask_token = draft.mask_slots(num_draft_tokens - 1)
    states = torch.cat((draft.fuse(aux_states_SAH), mask_state))
    tokens = torch.cat((token_ids_S[1:], mask_token))
    read = torch.arange(last, last + num_draft_tokens, device=tokens.device)
    output_KH = draft.start_from(states, tokens, torch.zeros_like(tokens), read).output_RH
    logits_KD = draft.lm_head(output_KH)
    return Drafted(draft.draft_to_target_D[logits_KD.argmax(dim=-1)], output_KH, logits_KD)


@torch.no_grad()
def propose(draft: Draft, token_ids_S: Tensor, aux_states_SAH: Tensor, num_draft_tokens: int, first: int = 0) -> Tensor:
    """Drafts at every position from `first`; see `algorithms.contract.Propose`. int64 [S-1-first, K], target ids.

    Every position is a branch of its own: masks behind it see the context up to it, and one another.
    """
    slots = token_ids_S.numel() - 1
    device = token_ids_S.device
    document_S = torch.zeros(slots, dtype=torch.long, device=device)
    rows_R = torch.arange(first, slots, device=device)
    branches = draft.start(token_ids_S[1:], aux_states_SAH[:slots], document_S, rows_R)
    tokens = []
    for depth in range(num_draft_tokens):
        if depth:
            draft.deepen(branches)
        tokens.append(draft.draft_to_target_D[draft.lm_head(branches.output_RH).argmax(dim=-1)])
    return torch.stack(tokens, dim=1)
