"""The batch of a step: token ids, positions, cache slots, and the requests' states after sampling.

Called in place of the kernels of `vllm.v1.worker.gpu` that `replacing` lists; see there for how.

Shape letters: B = requests of the batch, R = request states, T = tokens, L = logit rows, G = cache groups, W = blocks
of a block table. `state_B` (vLLM: idx_mapping) is the state that belongs to a request of the batch.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor


def lengths(start_B1: Tensor) -> Tensor:
    """Length of each span, from the spans' starts and the last one's end."""
    return start_B1[1:] - start_B1[:-1]


def owners(start_B1: Tensor) -> tuple[Tensor, Tensor]:
    """For each element of consecutive spans: its span, and its offset in it; both int64."""
    owner_T = torch.repeat_interleave(lengths(start_B1))
    return owner_T, torch.arange(owner_T.numel()) - start_B1[owner_T]


def prepare_prefill_inputs(
    grid: tuple[int, ...], input_ids_T: Tensor, next_tokens_NR: Tensor, next_stride: int, lookahead: int,
    state_B: Tensor, start_B1: Tensor, tokens_RS: Tensor, tokens_stride: int, prefill_R: Tensor, computed_R: Tensor,
    **sizes: int,
) -> None:  # fmt: skip
    """Input ids of requests that are still reading their prompt, and the prompt tokens that come next (0 past it)."""
    start, computed, prefill = start_B1.tolist(), computed_R[state_B].tolist(), prefill_R[state_B].tolist()
    for row, state in enumerate(state_B.tolist()):
        if computed[row] >= prefill[row]:
            continue
        end = computed[row] + start[row + 1] - start[row]
        input_ids_T[start[row] : start[row + 1]] = tokens_RS[state, computed[row] : end]
        following = tokens_RS[state, end : min(end + lookahead, prefill[row])]
        next_tokens_NR[:lookahead, state] = 0
        next_tokens_NR[: following.numel(), state] = following


def prepare_positions(
    grid: tuple[int, ...], position_T: Tensor, length_R: Tensor, state_B: Tensor, start_B1: Tensor, computed_R: Tensor,
    max_requests: int, **sizes: int,
) -> None:  # fmt: skip
    """Position of each token, and each request's length with them; 0 for rows without a request."""
    count, computed_B = state_B.numel(), computed_R[state_B]
    length_R[:count] = computed_B + lengths(start_B1[: count + 1])
    length_R[count:max_requests] = 0
    owner_T, offset_T = owners(start_B1[: count + 1])
    position_T[: owner_T.numel()] = computed_B[owner_T] + offset_T


def combine_sampled_and_draft_tokens(
    grid: tuple[int, ...], input_ids_T: Tensor, state_B: Tensor, last_sampled_R: Tensor, start_B1: Tensor,
    length_B: Tensor, prefill_R: Tensor, drafts_RK: Tensor, drafts_stride: int, logit_start_B1: Tensor,
    logit_index_L: Tensor, NUM_NEW_SAMPLED_TOKENS: int = 1, **sizes: int,
) -> None:  # fmt: skip
    """Where each logit row is read, and the token sampled last and the drafts as inputs of generating requests."""
    count = state_B.numel()
    logits_B = lengths(logit_start_B1[: count + 1])
    owner_L, offset_L = owners(logit_start_B1[: count + 1])
    index_L = start_B1[1 : count + 1][owner_L] - logits_B[owner_L] + offset_L
    logit_index_L[: owner_L.numel()] = index_L
    length_B, prefill_B = length_B[:count], prefill_R[state_B]
    is_new_L = offset_L < NUM_NEW_SAMPLED_TOKENS
    writes_draft_L = (length_B > prefill_B)[owner_L] & ~is_new_L
    # A row within the prompt keeps the prompt's token.
    writes_last_L = ((length_B > prefill_B) & (length_B - logits_B >= prefill_B))[owner_L] & is_new_L
    state_L = state_B[owner_L]
    for rows_L, token_N in (
        (writes_last_L, last_sampled_R.view(-1)[state_L[writes_last_L]]),
        (writes_draft_L, drafts_RK[state_L[writes_draft_L], offset_L[writes_draft_L] - NUM_NEW_SAMPLED_TOKENS]),
    ):
        input_ids_T[index_L[rows_L]] = token_N.to(input_ids_T.dtype)


def count_sampled_and_rejected(
    grid: tuple[int, ...], sampled_B: Tensor, rejected_B: Tensor, length_B: Tensor, logit_start_B1: Tensor,
    state_B: Tensor, prefill_R: Tensor,
) -> None:  # fmt: skip
    """Tokens that each request keeps and drops; none while it reads its prompt."""
    count = state_B.numel()
    reads_B = length_B[:count] < prefill_R[state_B]
    sampled_B[:count].masked_fill_(reads_B, 0)
    rejected_B[:count] = (lengths(logit_start_B1[: count + 1]) - sampled_B[:count]).masked_fill(reads_B, 0)


def post_update(
    grid: tuple[int, ...], state_B: Tensor, computed_R: Tensor, last_sampled_R: Tensor, counts_RV: Tensor | None,
    counts_stride: int, sampled_BK: Tensor, sampled_stride: int, sampled_B: Tensor, rejected_B: Tensor,
    start_B1: Tensor | None, tokens_RS: Tensor, tokens_stride: int, length_R: Tensor, **sizes: int,
) -> None:  # fmt: skip
    """Append the sampled tokens to the requests' states; rows with a negative state are skipped."""
    rows = (state_B >= 0).nonzero().squeeze(1)
    state_B, sampled_BK, sampled_B = state_B[rows], sampled_BK[rows], sampled_B[rows].long()
    taken_BK = torch.arange(sampled_BK.shape[1]) < sampled_B[:, None]
    owner_N, column_N = taken_BK.nonzero(as_tuple=True)
    state_N, token_N = state_B[owner_N], sampled_BK[owner_N, column_N]
    tokens_RS[state_N, length_R[state_N] + column_N] = token_N.to(tokens_RS.dtype)
    if counts_RV is not None:
        counts_RV.index_put_((state_N, token_N.long()), counts_RV.new_ones(()), accumulate=True)
    emits_B = sampled_B > 0
    last_B = sampled_BK.gather(1, (sampled_B - 1).clamp(min=0)[:, None]).squeeze(1)
    last_sampled_R.view(-1)[state_B[emits_B]] = last_B[emits_B].to(last_sampled_R.dtype)
    length_R[state_B] += sampled_B.to(length_R.dtype)
    query_B = 0 if start_B1 is None else lengths(start_B1)[rows]
    computed_R[state_B] += (query_B - rejected_B[rows]).to(computed_R.dtype)


def expand_index_mapping(
    grid: tuple[int, ...], state_B: Tensor, state_L: Tensor, offset_L: Tensor, logit_start_B1: Tensor, **sizes: int
) -> None:
    """The request state and the offset within its request of each logit row."""
    owner_L, within_L = owners(logit_start_B1[: state_B.numel() + 1])
    state_L[: owner_L.numel()] = state_B[owner_L]
    offset_L[: owner_L.numel()] = within_L


def _int32_at(address: int, count: int) -> Tensor:
    """The int32 values in memory at `address`; vLLM passes the cache groups' block tables by address."""
    return torch.frombuffer((ctypes.c_int32 * count).from_address(address), dtype=torch.int32)


def _table(address: int, rows: int, width: int) -> Tensor:
    return _int32_at(address, rows * width).view(rows, width)


def gather_block_tables(
    grid: tuple[int, ...], state_B: Tensor, source_G: Tensor, target_G: Tensor, width_G: Tensor, blocks_GR: Tensor,
    blocks_stride: int, count: int, **sizes: int,
) -> None:  # fmt: skip
    """Copy each request's blocks into the step's tables; rows of padding become 0, columns past the blocks stay."""
    groups, padded = grid
    for group in range(groups):
        width = int(width_G[group])
        source_RW = _table(int(source_G[group]), blocks_GR.shape[1], width)
        target_BW = _table(int(target_G[group]), padded, width)
        used_BW = torch.arange(width) < blocks_GR[group][state_B][:, None]
        target_BW[:count] = torch.where(used_BW, source_RW[state_B], target_BW[:count])
        target_BW[count:] = 0


def compute_slot_mappings(
    grid: tuple[int, ...], max_tokens: int, state_B: Tensor, start_B1: Tensor, position_T: Tensor, source_G: Tensor,
    width_G: Tensor, block_size_G: Tensor, enabled_G: Tensor, sharded_G: Tensor, slot_GT: Tensor, slot_stride: int,
    rank: int, CP_SIZE: int, CP_INTERLEAVE: int, PAD_ID: int, **sizes: int,
) -> Any:  # fmt: skip
    """Cache slot of each token in each group; the padding slot for tokens of no request and past the last token."""
    if CP_SIZE != 1:
        return NotImplemented
    owner_T, _ = owners(start_B1[: state_B.numel() + 1])
    state_T, end = state_B[owner_T], int(start_B1[state_B.numel()])
    position_T = position_T[:end]
    for group in range(grid[0]):
        slot_GT[group, end:max_tokens] = PAD_ID
        if not enabled_G[group] or not end:
            slot_GT[group, :end] = PAD_ID
            continue
        size = int(block_size_G[group])
        table_RW = _table(int(source_G[group]), int(state_B.max()) + 1, int(width_G[group]))
        block_T = table_RW[state_T.clamp(min=0), position_T // size].long()
        slot_T = block_T * size + position_T % size
        slot_GT[group, :end] = torch.where(state_T >= 0, slot_T, PAD_ID)
    return None


def apply_writes(
    grid: tuple[int, ...], output: Tensor, stride: Any, row_N: Tensor, start_N: Tensor, content: Tensor,
    end_N: Tensor, group_N: Any, MULTI_GROUP: bool, **sizes: int,
) -> None:  # fmt: skip
    """Write spans of `content` into rows of `output`, or of one of several tables given by address and stride."""
    rows, starts, ends = row_N.tolist(), start_N.tolist(), end_N.tolist()
    for number in range(grid[0]):
        values = content[ends[number - 1] if number else 0 : ends[number]]
        if MULTI_GROUP:
            group = int(group_N[number])
            first = rows[number] * int(stride[group]) + starts[number]
            _int32_at(int(output[group]) + 4 * first, values.numel())[:] = values
        else:
            first = rows[number] * stride + starts[number]
            output.view(-1)[first : first + values.numel()] = values
