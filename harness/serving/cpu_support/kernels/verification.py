"""Verification: which drafts of a step are accepted, and the token that follows them.

Called in place of the kernels of `vllm.v1.worker.gpu.spec_decode` that `replacing` lists; see there for how. Covered is
what the server does unless told otherwise: drafts are taken as they are (greedy drafting), each is accepted with the
verifier's probability of it, or at temperature 0 when it is the verifier's argmax.

Shape letters: B = requests of the batch, R = request states, L = logit rows (drafts and one more for each request),
K = draft tokens of a step, V = vocabulary, X = blocks of the vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from harness.serving.cpu_support.kernels.batch import lengths
from harness.serving.cpu_support.kernels.random_numbers import philox_uniform
from harness.serving.cpu_support.kernels.sampling import block_maxima, noised


def flatten_sampled(
    grid: tuple[int, ...], flat_L: Tensor, sampled_BK: Tensor, stride: int, sampled_B: Tensor, start_B1: Tensor,
    **sizes: int,
) -> None:  # fmt: skip
    """Each request's emitted tokens at its first logit rows."""
    taken_BK = torch.arange(sampled_BK.shape[1]) < sampled_B[:, None]
    row_N, column_N = taken_BK.nonzero(as_tuple=True)
    flat_L[start_B1[row_N] + column_N] = sampled_BK[row_N, column_N]


def gather_draft_sampled(
    grid: tuple[int, ...], draft_L: Tensor, position_L: Tensor, input_ids_T: Tensor, position_T: Tensor,
    index_L: Tensor, state_L: Tensor, offset_L: Tensor, prefill_R: Tensor, count: int, **sizes: int,
) -> None:  # fmt: skip
    """Input token and position of each logit row; -1 where a draft's place holds none yet."""
    position_L[:] = position_T[index_L]
    empty_L = (offset_L > 0) & (position_L - offset_L < prefill_R[state_L])
    draft_L[:] = input_ids_T[index_L].masked_fill(empty_L, -1)


def local_statistics(
    grid: tuple[int, ...], best_LX: Tensor, best_stride: int, highest_LX: Tensor, highest_stride: int,
    total_LX: Tensor, total_stride: int, draft_highest_LX: Tensor, draft_highest_stride: int, draft_total_LX: Tensor,
    draft_total_stride: int, logits_LV: Tensor, stride: int, draft_logits: Tensor | None, draft_stride_0: int,
    draft_stride_1: int, state_L: Tensor, offset_L: Tensor, temperature_R: Tensor, vocabulary: int, steps: int,
    BLOCK_SIZE: int, HAS_DRAFT_LOGITS: bool,
) -> Any:  # fmt: skip
    """Largest logit of each block with its token, and the block's sum of exponentials where a request samples."""
    if HAS_DRAFT_LOGITS:
        return NotImplemented
    is_draft_L, samples_L = offset_L < steps, temperature_R[state_L] != 0
    value_LX, token_LX = block_maxima(logits_LV, BLOCK_SIZE)
    highest_LX[is_draft_L] = value_LX[is_draft_L]
    greedy_L = is_draft_L & ~samples_L
    best_LX[greedy_L] = token_LX[greedy_L]
    rows = (is_draft_L & samples_L).nonzero().squeeze(1)
    if rows.numel():
        owner_V = torch.arange(logits_LV.shape[1]) // BLOCK_SIZE
        highest_NX = torch.where(value_LX[rows] > float("-inf"), value_LX[rows], 0.0)
        exponential_NV = (logits_LV[rows].float() - highest_NX[:, owner_V]).exp_()
        total_LX[rows] = torch.zeros_like(highest_NX).index_add_(1, owner_V, exponential_NV)
    return None


def _log_totals(highest: Tensor, total: Tensor) -> Tensor:
    """Log of the sum of exponentials over the blocks (last dimension)."""
    largest = highest.amax(dim=-1, keepdim=True)
    return (largest + (total * (highest - largest).exp()).sum(dim=-1, keepdim=True).log()).squeeze(-1)


def reject(
    grid: tuple[int, ...], sampled_BK: Tensor, sampled_stride: int, accepted_B: Tensor, target_total_B: Tensor,
    draft_total_B: Tensor, logits_LV: Tensor, stride: int, best_LX: Tensor, best_stride: int, highest_LX: Tensor,
    highest_stride: int, total_LX: Tensor, total_stride: int, draft_L: Tensor, draft_logits: Tensor | None,
    draft_stride_0: int, draft_stride_1: int, draft_highest_LX: Tensor, draft_highest_stride: int,
    draft_log_total_LX: Tensor, draft_log_total_stride: int, start_B1: Tensor, state_B: Tensor, temperature_R: Tensor,
    seed_R: Tensor, position_L: Tensor, rates_K: Tensor | None, cumulative_L: Tensor | None,
    residual_LX: Tensor | None, residual_stride: int, blocks: int, HAS_DRAFT_LOGITS: bool, SYNTHETIC_MODE: bool,
    USE_BLOCK_VERIFICATION: bool, **sizes: int,
) -> Any:  # fmt: skip
    """Number of accepted drafts of each request, and the tokens up to the first one that is not.

    In that one's place stands the verifier's argmax at temperature 0; otherwise `resample` chooses.
    """
    if HAS_DRAFT_LOGITS or SYNTHETIC_MODE or USE_BLOCK_VERIFICATION:
        return NotImplemented
    column_K = torch.arange(sampled_BK.shape[1] - 1)
    is_draft_BK = column_K < (lengths(start_B1) - 1)[:, None]
    row_BK = torch.where(is_draft_BK, start_B1[:-1, None] + column_K, 0)
    draft_BK = torch.where(is_draft_BK, draft_L[torch.where(is_draft_BK, row_BK + 1, 0)].long(), -1)
    best_BK = best_LX.gather(1, highest_LX.argmax(dim=1, keepdim=True)).squeeze(1)[row_BK]
    greedy_B = temperature_R[state_B] == 0
    accepted_BK = draft_BK == best_BK
    if not greedy_B.all():
        uniform_BK = philox_uniform(seed_R[state_B][:, None], position_L[row_BK])
        logit_BK = logits_LV[row_BK, draft_BK.clamp(min=0)].float()
        likely_BK = logit_BK - _log_totals(highest_LX, total_LX)[row_BK] > uniform_BK.log()
        accepted_BK = torch.where(greedy_B[:, None], accepted_BK, likely_BK)
    accepted_BK &= draft_BK >= 0
    accepted_B[:] = accepted_BK.long().cumprod(dim=1).sum(dim=1)
    chosen_BK = torch.where(greedy_B[:, None] & ~accepted_BK, best_BK, draft_BK)
    written_BK = is_draft_BK & (column_K <= accepted_B[:, None])
    sampled_BK[:, :-1] = torch.where(written_BK, chosen_BK, sampled_BK[:, :-1])
    return None


def _sampling_rows(accepted_B: Tensor, start_B1: Tensor, state_L: Tensor, temperature_R: Tensor) -> tuple[Tensor, ...]:
    """Requests whose next token is still to be chosen, the logit row it comes from, and whether it is the last row."""
    row_B = start_B1[:-1].long() + accepted_B
    is_last_B = row_B == start_B1[1:] - 1
    requests = (is_last_B | (temperature_R[state_L[row_B]] != 0)).nonzero().squeeze(1)
    return requests, row_B[requests], is_last_B[requests]


def resample(
    grid: tuple[int, ...], best_BX: Tensor, best_stride: int, value_BX: Tensor, value_stride: int, logits_LV: Tensor,
    stride: int, target_total_B: Tensor, draft_logits: Tensor | None, draft_stride_0: int, draft_stride_1: int,
    draft_total_B: Tensor, accepted_B: Tensor, start_B1: Tensor, state_L: Tensor, draft_L: Tensor,
    temperature_R: Tensor, seed_R: Tensor, position_L: Tensor, cumulative_L: Tensor | None, contexts: Tensor | None,
    contexts_stride: int, watermarking: Tensor | None, skipped: Tensor | None, key_0: int, key_1: int,
    vocabulary: int, BLOCK_SIZE: int, HAS_DRAFT_LOGITS: bool, USE_FP64: bool, USE_BLOCK_VERIFICATION: bool,
    WATERMARK: bool, **sizes: int,
) -> Any:  # fmt: skip
    """Sample the token after the accepted ones, block by block; never the draft that was refused."""
    if HAS_DRAFT_LOGITS or USE_FP64 or USE_BLOCK_VERIFICATION or WATERMARK:
        return NotImplemented
    requests, row_N, is_last_N = _sampling_rows(accepted_B, start_B1, state_L, temperature_R)
    if not requests.numel():
        return None
    state_N, logits_NV = state_L[row_N], logits_LV[row_N].float()
    refused_N = draft_L[torch.where(is_last_N, 0, row_N + 1)].long()
    ruled_out_N = (~is_last_N & (refused_N >= 0)).nonzero().squeeze(1)
    logits_NV[ruled_out_N, refused_N[ruled_out_N]] = float("-inf")
    noised_NV = noised(logits_NV, temperature_R[state_N], seed_R[state_N], position_L[row_N])
    value_BX[requests], best_BX[requests] = block_maxima(noised_NV, BLOCK_SIZE)
    return None


def insert_resampled(
    grid: tuple[int, ...], sampled_BK: Tensor, sampled_stride: int, accepted_B: Tensor, best_BX: Tensor,
    best_stride: int, value_BX: Tensor, value_stride: int, blocks: int, start_B1: Tensor, state_L: Tensor,
    temperature_R: Tensor, **sizes: int,
) -> None:  # fmt: skip
    """Put the token of `resample` behind the accepted ones; `accepted_B` becomes the number of emitted tokens."""
    requests, _, _ = _sampling_rows(accepted_B, start_B1, state_L, temperature_R)
    block_N1 = value_BX[requests].argmax(dim=1, keepdim=True)
    sampled_BK[requests, accepted_B[requests].long()] = best_BX[requests].gather(1, block_N1).squeeze(1)
    accepted_B += 1
