"""Drafting: the inputs of a block of draft tokens after the verifier's step, and the walk through its candidates.

Called in place of the kernels of vLLM's speculators that `replacing` lists; see there for how.

Shape letters: B = requests of the batch, R = request states, T = tokens of the verifier's step, Q = query rows of all
blocks, N = sampled rows of all blocks, K = draft tokens of a block, C = candidates, W = blocks of a block table.
"""

from typing import Any

import torch
from torch import Tensor

from harness.serving.cpu_support.kernels.batch import lengths, owners


def _slots(block_BW: Tensor, row_T: Tensor, position_T: Tensor, block_size: int, padding: int) -> Tensor:
    """Cache slot of each position of its request; the null block (0) can never be written."""
    column_T = (position_T // block_size).clamp(max=block_BW.shape[1] - 1)
    block_T = block_BW[row_T, column_T].long()
    return torch.where(block_T != 0, block_T * block_size + position_T % block_size, padding)


def prepare_block_inputs(
    grid: tuple[int, ...], input_ids_Q: Tensor, position_Q: Tensor, start_R1: Tensor, length_R: Tensor, slot_Q: Tensor,
    context_position_T: Tensor, context_slot_T: Tensor, sample_index_N: Tensor, sample_position_N: Tensor,
    sample_state_N: Tensor, temperature_R: Tensor, seed_R: Tensor, target_position_T: Tensor, target_start_B1: Tensor,
    state_B: Tensor, last_sampled_R: Tensor, next_prefill_R: Tensor, sampled_B: Tensor, rejected_B: Tensor,
    target_temperature_R: Tensor, target_seed_R: Tensor, block_BW: Tensor, block_stride: int, mask_token: int,
    block_size: int, rows: int, drafts: int, max_requests: int, max_tokens: int, max_length: int, rank: int,
    SAMPLE_FROM_ANCHOR: bool, PAD_SLOT_ID: int, CP_SIZE: int, **sizes: int,
) -> Any:  # fmt: skip
    """Everything the draft's step reads: context positions and slots, blocks of anchor and mask tokens, sampled rows.

    Context rows of rejected tokens get position 0 and the padding slot; query positions stop below `max_length`.
    """
    if CP_SIZE != 1:
        return NotImplemented
    count = grid[0]
    start_B1, state_B, rejected_B = target_start_B1[: count + 1], state_B[:count], rejected_B[:count]
    owner_T, offset_T = owners(start_B1)
    total, valid_B = owner_T.numel(), lengths(start_B1) - rejected_B
    valid_T = offset_T < valid_B[owner_T]
    position_T = torch.where(valid_T, target_position_T[:total], 0)
    context_position_T[:total] = position_T
    context_slot_T[:total] = torch.where(
        valid_T, _slots(block_BW, owner_T, position_T, block_size, PAD_SLOT_ID), PAD_SLOT_ID
    )

    anchor_position_B = target_position_T[start_B1[:-1] + valid_B - 1] + 1
    anchor_B = torch.where(sampled_B[:count] > 0, last_sampled_R.view(-1)[state_B], next_prefill_R.view(-1)[state_B])
    query_position_Bq = anchor_position_B[:, None] + torch.arange(rows)
    query_Bq = torch.arange(count * rows).view(count, rows)
    ids_Bq = input_ids_Q[: count * rows].view(count, rows)
    ids_Bq[:] = mask_token
    ids_Bq[:, 0] = anchor_B
    position_Q[: count * rows] = query_position_Bq.clamp(max=max_length - 1).flatten()
    row_Bq = torch.arange(count)[:, None].expand(count, rows)
    slot_Q[: count * rows] = _slots(block_BW, row_Bq, query_position_Bq, block_size, PAD_SLOT_ID).flatten()
    slot_Q[count * rows : max_tokens] = PAD_SLOT_ID

    first, ahead = (0, 1) if SAMPLE_FROM_ANCHOR else (1, 0)
    sampled = count * drafts
    sample_index_N[:sampled] = query_Bq[:, first:].flatten()
    sample_position_N[:sampled] = query_position_Bq[:, first:].flatten() + ahead
    sample_state_N[:sampled] = state_B.repeat_interleave(drafts)
    for padded_N, value in ((sample_index_N, 0), (sample_position_N, 0), (sample_state_N, -1)):
        padded_N[sampled : max_requests * drafts] = value

    start_R1[:count] = query_Bq[:, 0]
    start_R1[count : max_requests + 1] = count * rows
    length_R[:count] = (anchor_position_B + rows).clamp(max=max_length)
    length_R[count:max_requests] = 0
    temperature_R[state_B] = target_temperature_R[state_B]
    seed_R[state_B] = target_seed_R[state_B]
    return None


def walk_candidates(
    grid: tuple[int, ...], score_BKCC: Tensor, candidate_BKC: Tensor, position_N: Tensor, state_N: Tensor,
    temperature_R: Tensor, seed_R: Tensor, token_RK: Tensor, realized_RKC: Tensor, num_steps: int, top_k: int,
    SAMPLE_PROBABILISTIC: bool, USE_FP64: bool, **sizes: int,
) -> Any:  # fmt: skip
    """The best candidate of each step, given the candidate chosen before it; the scores that decided are kept."""
    if SAMPLE_PROBABILISTIC or USE_FP64:
        return NotImplemented
    count = grid[0]
    score_BKCC = score_BKCC.view(-1, num_steps, top_k, top_k)[:count].float()
    candidate_BKC = candidate_BKC.view(-1, num_steps, top_k)[:count]
    valid_B = state_N[: count * num_steps : num_steps] >= 0
    row_B, chosen_B = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    for step in range(num_steps):
        score_BC = score_BKCC[row_B, step, chosen_B]
        chosen_B = score_BC.argmax(dim=1)
        token_B = candidate_BKC[row_B, step, chosen_B]
        realized_RKC[:count, step] = torch.where(valid_B[:, None], score_BC, realized_RKC[:count, step])
        token_RK[:count, step] = torch.where(valid_B, token_B, token_RK[:count, step])
    return None
