"""Sampling from logits: temperature, min-p, penalties, noise, argmax, log-probabilities, ranks.

Called in place of the kernels of `vllm.v1.worker.gpu.sample` that `replacing` lists; see there for how. NumPy finds the
largest of a row several times as fast as PyTorch on a CPU; both take the first of equals.

Shape letters: L = logit rows, R = request states, V = vocabulary, X = blocks of the vocabulary, N = token ids a row.
`state_L` is the state of the request that a row belongs to; below 0 for rows of padding.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from harness.serving.cpu_support.kernels.random_numbers import gumbel_noise


def block_maxima(logits_LV: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Largest logit of each block of the vocabulary, float32 [L, X], and its token, int64 [L, X]."""
    count = logits_LV.shape[1]
    blocks = -(-count // block_size)
    logits_LV = pad(logits_LV.float(), (0, blocks * block_size - count), value=float("-inf"))
    logits_LXv = logits_LV.view(-1, blocks, block_size)
    place_LX = torch.from_numpy(logits_LXv.numpy().argmax(-1))
    value_LX = logits_LXv.gather(2, place_LX[:, :, None]).squeeze(2)
    return value_LX, place_LX + torch.arange(blocks) * block_size


def noised(logits_LV: Tensor, temperature_L: Tensor, seed_L: Tensor, position_L: Tensor) -> Tensor:
    """Logits whose argmax is a sample of the softmax, float32; rows at temperature 0 as they are."""
    logits_LV = logits_LV.float()
    rows = temperature_L.nonzero().squeeze(1)
    if rows.numel():
        noise_LV = gumbel_noise(seed_L[rows], position_L[rows].long(), logits_LV.shape[1])
        logits_LV = logits_LV.index_add(0, rows, noise_LV)
    return logits_LV


def apply_temperature(
    grid: tuple[int, ...], logits_LV: Tensor, stride: int, state_L: Tensor, temperature_R: Tensor, vocabulary: int,
    **sizes: int,
) -> None:  # fmt: skip
    """Divide each row by its temperature; greedy rows (0) stay."""
    temperature_L = temperature_R[state_L]
    logits_LV /= torch.where(temperature_L == 0, 1.0, temperature_L)[:, None]


def apply_min_p(
    grid: tuple[int, ...], logits_LV: Tensor, stride: int, state_L: Tensor, min_p_R: Tensor, vocabulary: int,
    **sizes: int,
) -> None:  # fmt: skip
    """Rule out tokens less likely than min-p times the likeliest; rows with 0 stay."""
    threshold_L = logits_LV.amax(dim=1) + min_p_R[state_L].log()
    logits_LV.masked_fill_(logits_LV < threshold_L[:, None], float("-inf"))


def count_tokens(
    grid: tuple[int, ...], state_L: Tensor, tokens_RS: Tensor, tokens_stride: int, prompt_R: Tensor, prefill_R: Tensor,
    prompt_bits_RW: Tensor, bits_stride: int, counts_RV: Tensor, counts_stride: int, **sizes: int,
) -> None:  # fmt: skip
    """For new requests: the prompt's tokens as a set of bits (32 a word), counts of the tokens after the prompt."""
    for state in state_L.tolist():
        prompt, prefill = int(prompt_R[state]), int(prefill_R[state])
        seen_V = torch.zeros(prompt_bits_RW.shape[1] * 32, dtype=torch.int64)
        seen_V[tokens_RS[state, :prompt].long()] = 1
        words_W = (seen_V.view(-1, 32) << torch.arange(32)).sum(dim=1)
        prompt_bits_RW[state] |= (words_W << 32 >> 32).to(torch.int32)
        counts_RV[state] += torch.bincount(tokens_RS[state, prompt:prefill].long(), minlength=counts_RV.shape[1]).to(
            counts_RV.dtype
        )


def apply_penalties(
    grid: tuple[int, ...], logits_LV: Tensor, stride: int, state_L: Tensor, token_L: Tensor, offset_L: Tensor,
    repetition_R: Tensor, frequency_R: Tensor, presence_R: Tensor, prompt_bits_RW: Tensor, bits_stride: int,
    counts_RV: Tensor, counts_stride: int, vocabulary: int, **sizes: int,
) -> None:  # fmt: skip
    """Repetition, frequency and presence penalties; a row counts the drafts before it as if they were accepted."""
    for row, state in enumerate(state_L.tolist()):
        repetition, frequency, presence = (float(each[state]) for each in (repetition_R, frequency_R, presence_R))
        if (repetition, frequency, presence) == (1.0, 0.0, 0.0):
            continue
        counts_V = counts_RV[state, :vocabulary].clone()
        drafts = token_L[row - int(offset_L[row]) + 1 : row + 1].long()
        drafts = drafts[drafts >= 0]  # -1 where there is none yet
        counts_V.index_add_(0, drafts, counts_V.new_ones(drafts.numel()))
        logits_V = logits_LV[row]
        if repetition != 1.0:
            in_prompt_V = (prompt_bits_RW[state][:, None] >> torch.arange(32) & 1).flatten()[:vocabulary].bool()
            scale_V = torch.where(in_prompt_V | (counts_V > 0), repetition, 1.0)
            logits_V *= torch.where(logits_V > 0, 1.0 / scale_V, scale_V)
        logits_V -= frequency * counts_V
        logits_V -= presence * (counts_V > 0)


def gumbel_sample(
    grid: tuple[int, ...], best_LX: Tensor, best_stride: int, value_LX: Tensor, value_stride: int,
    cache: Tensor | None, cache_stride_0: int, cache_stride_1: int, cache_column: Tensor | None,
    cache_source: Tensor | None, source_stride: int, logits_LV: Tensor, stride: int, state_L: Tensor, seed_R: Tensor,
    position_L: Tensor, temperature_R: Tensor, vocabulary: int, BLOCK_SIZE: int, APPLY_TEMPERATURE: bool,
    USE_FP64: bool, **sizes: int,
) -> Any:  # fmt: skip
    """Best token and its noised logit in each block of the vocabulary, noised where the temperature is not 0."""
    if cache is not None or APPLY_TEMPERATURE or USE_FP64:
        return NotImplemented
    valid_L, state_L = state_L >= 0, state_L.clamp(min=0)
    temperature_L = torch.where(valid_L, temperature_R[state_L], 0.0)
    noised_LV = noised(logits_LV, temperature_L, torch.where(valid_L, seed_R[state_L], 0), position_L)
    value_LX[:], best_LX[:] = block_maxima(noised_LV, BLOCK_SIZE)
    return None


def log_probabilities(
    grid: tuple[int, ...], out_LN: Tensor, logits_LV: Tensor, stride: int, token_LN: Tensor, token_stride: int,
    count: int, vocabulary: int, **sizes: int,
) -> None:  # fmt: skip
    """Log-probabilities of the given tokens, in float32."""
    logits_LV = logits_LV.float()
    highest_L1 = logits_LV.amax(dim=1, keepdim=True)
    total_L1 = (logits_LV - highest_L1).exp_().sum(dim=1, keepdim=True)
    out_LN[:] = logits_LV.gather(1, token_LN) - highest_L1 - total_L1.log()


def ranks(
    grid: tuple[int, ...], out_L: Tensor, logits_LV: Tensor, stride: int, token_L: Tensor, vocabulary: int, **sizes: int
) -> None:
    """Number of tokens at least as likely as the given one, itself included."""
    out_L[:] = (logits_LV >= logits_LV.gather(1, token_L[:, None].long())).sum(dim=1)
