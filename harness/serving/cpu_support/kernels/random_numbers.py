"""The random numbers of vLLM's second runner: the same request, seed and position give the same draw as its kernels.

Called by `sampling` (noise over the vocabulary) and `verification` (one number per draft token). Both generators work
in 32-bit words; here a word is the low half of an int64, so that no operation is signed by accident.

Shape letters: L = rows, V = vocabulary.
"""

from functools import lru_cache

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
PHILOX_ROUNDS = 10
PHILOX_KEYS = (0x9E3779B9, 0xBB67AE85)
PHILOX_FACTORS = (0xD2511F53, 0xCD9E8D57)
# Largest and smallest value of Triton's float32 uniform: see `triton.language.random`.
UNIFORM_SCALE = 4.6566127342e-10


def _rotated(word: Tensor, shift: int) -> Tensor:
    return (word << shift | word >> (32 - shift)) & WORD


def _scrambled(word: Tensor) -> Tensor:
    """A key before it is mixed in (MurmurHash3, 32 bits)."""
    return _rotated(word * 0xCC9E2D51 & WORD, 15) * 0x1B873593 & WORD


def _mixed(hashed: Tensor, scrambled: Tensor) -> Tensor:
    return _rotated(hashed ^ scrambled, 13) * 5 + 0xE6546B64 & WORD


@lru_cache(maxsize=4)
def _scrambled_tokens(count: int) -> Tensor:
    return _scrambled(torch.arange(count))


def _finished(hashed: Tensor) -> Tensor:
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & WORD
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & WORD
    return hashed ^ hashed >> 16


def _hashed(seed_L: Tensor, position_L: Tensor, vocabulary: int) -> Tensor:
    """MurmurHash3 of (seed, position, token), 32 bits, int64 [L, V]."""
    prefix_L = torch.zeros_like(seed_L)
    for key_L in (seed_L & WORD, seed_L >> 32 & WORD, position_L & WORD):
        prefix_L = _mixed(prefix_L, _scrambled(key_L))
    return _finished(_mixed(prefix_L[:, None], _scrambled_tokens(vocabulary)) ^ 16)


def _log1p_negated(value: Tensor) -> Tensor:
    """log(1 - value) as the kernels compute it: a series of degree 8 where float32 has no digits to lose."""
    series = torch.full_like(value, 1 / 8)
    for degree in range(7, 0, -1):
        series.mul_(value).add_(1 / degree)
    direct = (1 - value).clamp_(min=5.960464477539063e-08).log_()
    return torch.where(value < 0.25, -value * series, direct)


def gumbel_noise(seed_L: Tensor, position_L: Tensor, vocabulary: int) -> Tensor:
    """Standard Gumbel noise, float32 [L, V]; equal for equal (seed, position, token).

    Args:
        seed_L: int64.
        position_L: int64, the position before the token to sample.
    """
    hashed = _hashed(seed_L, position_L, vocabulary)
    uniform = (hashed >> 16).float() * 1.52587890625e-05
    uniform += ((hashed & 0xFFFF).float() + 0.5) * 2.3283064365386963e-10
    return _log1p_negated(uniform).neg_().log_().neg_()


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low word of a product, from two parts that an int64 holds with its sign."""
    upper, lower = word * (factor >> 16), word * (factor & 0xFFFF)
    middle = upper + (lower >> 16)
    return middle >> 16, (middle << 16 | lower & 0xFFFF) & WORD


def philox_uniform(seed_L: Tensor, position_L: Tensor) -> Tensor:
    """Triton's `tl.rand(seed, position)`, float32 [L], lifted above zero.

    Args:
        seed_L, position_L: int64.
    """
    zero_L = torch.zeros_like(seed_L)
    counter = [position_L & WORD, position_L >> 32 & WORD, zero_L, zero_L]
    keys = [seed_L & WORD, seed_L >> 32 & WORD]
    for _ in range(PHILOX_ROUNDS):
        (high_0, low_0), (high_2, low_2) = map(_product, (counter[0], counter[2]), PHILOX_FACTORS)
        counter = [high_2 ^ counter[1] ^ keys[0], low_2, high_0 ^ counter[3] ^ keys[1], low_0]
        keys = [key + step & WORD for key, step in zip(keys, PHILOX_KEYS, strict=True)]
    signed_L = counter[0] << 32 >> 32
    return (torch.where(signed_L < 0, ~signed_L, signed_L).float() * UNIFORM_SCALE).clamp(min=UNIFORM_SCALE)
