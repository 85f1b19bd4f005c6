"""Building blocks that drafts share: norm, rotary positions, gated MLP.

Shape letters: R = rows (positions of packed documents), N = heads, D = head size, H = width.
Parameter names equal the checkpoint's (contract 2.2), so a state dict is exported as it is.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """x * (mean(x^2) + eps)^-1/2 * weight, computed in float32 whatever the input's dtype."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x_RH: Tensor) -> Tensor:
        """[..., H] -> [..., H], same dtype."""
        normed = F.rms_norm(x_RH.float(), self.weight.shape, self.weight.float(), self.epsilon)
        return normed.to(x_RH.dtype)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), no biases."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner_width, bias=False)
        self.up_proj = nn.Linear(width, inner_width, bias=False)
        self.down_proj = nn.Linear(inner_width, width, bias=False)

    def forward(self, x_RH: Tensor) -> Tensor:
        """[R, H] -> [R, H]."""
        return self.down_proj(F.silu(self.gate_proj(x_RH)) * self.up_proj(x_RH))


def _llama3_frequencies(frequencies: Tensor, rope: dict[str, Any]) -> Tensor:
    """Slow the long wave lengths down as Llama 3.1 does, with a smooth middle band."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    wave_lengths = 2 * math.pi / frequencies
    share = (rope["original_max_position_embeddings"] / wave_lengths - low) / (high - low)
    share = share.clamp(0.0, 1.0)
    return (1 - share) * frequencies / factor + share * frequencies


def rotary_frequencies(rope: dict[str, Any], head_dim: int) -> Tensor:
    """Radians per position of each rotated pair, float32 [head_dim / 2].

    Args:
        rope: `rope_parameters` of a config: rope_type default, linear or llama3.

    Raises:
        ValueError: another rope_type, or a partial rotary factor: never the default in silence.
    """
    kind = rope.get("rope_type", "default")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor = {rope['partial_rotary_factor']} is not supported. Fix: use 1.0")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope["rope_theta"] ** exponents
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / rope["factor"]
    if kind == "llama3":
        return _llama3_frequencies(frequencies, rope)
    raise ValueError(f"rope_type = {kind!r} is not supported. Fix: use default, linear or llama3")


class Rotary(nn.Module):
    """Rotary position embedding over two halves of the head ("neox" order), as the engine applies it."""

    def __init__(self, rope: dict[str, Any], head_dim: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", rotary_frequencies(rope, head_dim), persistent=False)

    def angles(self, positions_R: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine, float32 [R, 1, D/2] each, shared by every layer."""
        angle = positions_R.float()[:, None, None] * self.frequencies
        return angle.cos(), angle.sin()

    @staticmethod
    def rotate(x_RND: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Turn the heads of each row, in float32; dtype is kept."""
        cosine, sine = angles
        first, second = x_RND.float().chunk(2, dim=-1)
        turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
        return turned.to(x_RND.dtype)
