"""How the engine drafts with DSpark (contract 4.7): once plainly for one position, once for all positions.

`draft_steps` is the readable truth that the tests hold against vLLM; `propose` gives the same drafts for every
position of a reply and is what train/serve parity and validation use. The engine's `dspark_draft_topk`, which lets the
Markov head reorder a few candidates only, is off unless the server is told otherwise, and is off here.

Shape letters: S = positions, A = verifier states, R = blocks, K = draft tokens, H = width, D = draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.dflash.drafting import open_context, states_everywhere
from algorithms.dspark.model import Draft


@dataclass(frozen=True)
class Drafted:
    """What one proposal computed, draft by draft.

    Attributes:
        token_ids_K: drafts as target ids.
        output_KH: what the heads read.
        logits_KD: over the draft vocabulary, the Markov head's part included.
        confidence_K: guessed chance of acceptance, float32; ones without a confidence head.
    """

    token_ids_K: Tensor
    output_KH: Tensor
    logits_KD: Tensor
    confidence_K: Tensor


@torch.no_grad()
def draft_steps(draft: Draft, token_ids_S: Tensor, aux_states_SAH: Tensor, num_draft_tokens: int) -> Drafted:
    """The drafts of one engine step: the block at once, then its tokens one by one.

    Args:
        token_ids_S: x_0 .. x_m, the last one just sampled: one token more than there are states.
        aux_states_SAH: the verifier's states at 0 .. m-1.
        num_draft_tokens: K.
    """
    anchor, unused = torch.tensor([aux_states_SAH.shape[0]], device=token_ids_S.device), draft.shape.unused_rows
    context = open_context(draft, aux_states_SAH)
    output_KH = draft.blocks(context, token_ids_S[-1:], anchor, num_draft_tokens + unused)[0, unused:]
    tokens, logits, confidence = [token_ids_S[-1:]], [], []
    for output_1H in output_KH.split(1):
        embedding = draft.markov_head.embed(tokens[-1])
        logits.append(draft.logits(output_1H, embedding))
        confidence.append(draft.confidence(output_1H, embedding))
        tokens.append(draft.draft_to_target_D[logits[-1].argmax(dim=-1)])
    return Drafted(torch.cat(tokens[1:]), output_KH, torch.cat(logits), torch.cat(confidence))


@torch.no_grad()
def walk(draft: Draft, output_RKH: Tensor, anchor_token_R: Tensor) -> Tensor:
    """Greedy tokens of many blocks, each after the one before it; target ids, int64 [R, K].

    Args:
        output_RKH: what the heads read.
        anchor_token_R: target id of the token before the first draft.
    """
    tokens = [anchor_token_R]
    for output_RH in output_RKH.transpose(0, 1).contiguous():  # each draft's rows as one matrix
        logits_RD = draft.logits(output_RH, draft.markov_head.embed(tokens[-1]))
        tokens.append(draft.draft_to_target_D[logits_RD.argmax(dim=-1)])
    return torch.stack(tokens[1:], dim=1)


@torch.no_grad()
def propose(draft: Draft, token_ids_S: Tensor, aux_states_SAH: Tensor, num_draft_tokens: int, first: int = 0) -> Tensor:
    """Drafts at every position from `first`; see `algorithms.contract.Propose`. int64 [S-1-first, K], target ids."""
    unused = draft.shape.unused_rows
    states = states_everywhere(draft, token_ids_S, aux_states_SAH, num_draft_tokens + unused, first)
    return torch.cat([walk(draft, state_RTH[:, unused:], anchor_R) for anchor_R, state_RTH in states])
