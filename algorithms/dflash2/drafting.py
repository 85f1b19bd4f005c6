"""How the engine drafts with DFlash2 (contract 4.6): once plainly for one position, once for all positions.

`draft_block` is the readable truth that the tests hold against vLLM; `propose` gives the same drafts for every
position of a reply and is what train/serve parity and validation use.

Shape letters: S = positions, A = verifier states, R = blocks, T = rows of a block, H = width, K = draft tokens,
C = candidates, D = draft vocabulary (all of the verifier's).
"""

import torch
from torch import Tensor

from algorithms.dflash.drafting import Drafted, open_context, states_everywhere
from algorithms.dflash2.model import Draft
from algorithms.dflash2.selector import greedy_walk


@torch.no_grad()
def draft_block(draft: Draft, token_ids_S: Tensor, aux_states_SAH: Tensor, num_draft_tokens: int) -> Drafted:
    """The drafts of one engine step.

    Args:
        token_ids_S: x_0 .. x_m, the last one just sampled: one token more than there are states.
        aux_states_SAH: the verifier's states at 0 .. m-1.
        num_draft_tokens: K.
    """
    anchor = torch.tensor([aux_states_SAH.shape[0]], device=token_ids_S.device)
    context = open_context(draft, aux_states_SAH)
    output_KH = draft.blocks(context, token_ids_S[-1:], anchor, num_draft_tokens + 1)[0, 1:]
    logits_KD = draft.lm_head(output_KH).float()
    selector = draft.candidate_selector
    chosen = [token_ids_S[-1]]
    for output_H, logits_D in zip(output_KH, logits_KD, strict=True):
        logit_C, candidate_C = logits_D.topk(draft.shape.selector_top_k)
        wanted_r = selector.predecessor_codebook[chosen[-1]] * selector.hidden_projection(output_H)
        score_C = logit_C + selector.successor_codebook[candidate_C] @ wanted_r
        chosen.append(candidate_C[score_C.argmax()])
    return Drafted(torch.stack(chosen[1:]), output_KH, logits_KD)


@torch.no_grad()
def propose(draft: Draft, token_ids_S: Tensor, aux_states_SAH: Tensor, num_draft_tokens: int, first: int = 0) -> Tensor:
    """Drafts at every position from `first`; see `algorithms.contract.Propose`. int64 [S-1-first, K], target ids."""
    drafts = []
    for anchor_R, state_RTH in states_everywhere(draft, token_ids_S, aux_states_SAH, num_draft_tokens + 1, first):
        output_RKH = state_RTH[:, 1:].contiguous()  # a slice is no matrix: the head would be copied
        best = draft.lm_head(output_RKH).topk(draft.shape.selector_top_k, dim=-1)
        drafts.append(greedy_walk(draft.candidate_selector, output_RKH, anchor_R, best.values.float(), best.indices))
    return torch.cat(drafts)
