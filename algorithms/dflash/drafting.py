"""How the engine drafts with DFlash (contract 4.4): once plainly for one position, once for all positions.

`draft_block` is the readable truth that the tests hold against vLLM; `propose` gives the same drafts for every
position of a reply and is what train/serve parity and validation use.

Shape letters: S = positions, A = verifier states, R = blocks, T = rows of a block, H = width, K = draft tokens,
D = draft vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.dflash.model import Backbone, Context

# Blocks computed at once: the attention scores of a chunk are [heads, blocks * rows, document].
CHUNK_BLOCKS = 128


@dataclass(frozen=True)
class Drafted:
    """What one proposal computed.

    Attributes:
        token_ids_K: drafts as target ids.
        output_KH: what the head read for each.
        logits_KD: over the draft vocabulary.
    """

    token_ids_K: Tensor
    output_KH: Tensor
    logits_KD: Tensor


def open_context(draft: Backbone, aux_states_SAH: Tensor) -> Context:
    """The context of one document, and one more position for a block to stand at: no block sees its anchor's key."""
    padded = torch.cat((aux_states_SAH, torch.zeros_like(aux_states_SAH[:1])))
    return draft.context(padded, torch.zeros(len(padded), dtype=torch.long, device=padded.device))


@torch.no_grad()
def draft_block(draft: Backbone, token_ids_S: Tensor, aux_states_SAH: Tensor, num_draft_tokens: int) -> Drafted:
    """The drafts of one engine step.

    Args:
        token_ids_S: x_0 .. x_m, the last one just sampled: one token more than there are states.
        aux_states_SAH: the verifier's states at 0 .. m-1.
        num_draft_tokens: K.
    """
    anchor = torch.tensor([aux_states_SAH.shape[0]], device=token_ids_S.device)
    context = open_context(draft, aux_states_SAH)
    output_KH = draft.blocks(context, token_ids_S[-1:], anchor, num_draft_tokens + 1)[0, 1:]
    logits_KD = draft.lm_head(output_KH)
    return Drafted(draft.draft_to_target_D[logits_KD.argmax(dim=-1)], output_KH, logits_KD)


def states_everywhere(
    draft: Backbone, token_ids_S: Tensor, aux_states_SAH: Tensor, size: int, first: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """(tokens of row 0 [R], states of blocks of `size` rows [R, T, H]) at positions first+1 .. S-1, some at a time."""
    context = open_context(draft, aux_states_SAH[: token_ids_S.numel() - 1])
    every_R = torch.arange(first + 1, token_ids_S.numel(), device=token_ids_S.device)
    for anchor_R in every_R.split(CHUNK_BLOCKS):
        yield token_ids_S[anchor_R], draft.blocks(context, token_ids_S[anchor_R], anchor_R, size)


@torch.no_grad()
def propose(
    draft: Backbone, token_ids_S: Tensor, aux_states_SAH: Tensor, num_draft_tokens: int, first: int = 0
) -> Tensor:
    """Drafts at every position from `first`; see `algorithms.contract.Propose`. int64 [S-1-first, K], target ids."""
    states = states_everywhere(draft, token_ids_S, aux_states_SAH, num_draft_tokens + 1, first)
    # A slice is no matrix: the head would be copied for each block.
    guesses = [draft.lm_head(state_RTH[:, 1:].contiguous()).argmax(dim=-1) for _, state_RTH in states]
    return draft.draft_to_target_D[torch.cat(guesses)]
