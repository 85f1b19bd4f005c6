"""Weights in 8 bits with one scale a row, activations quantised by the server token by token (compressed-tensors).

Symmetric: w is about q * scale, scale = largest |w| of the row / largest value of the type. Called by `folders`.

Shape letters: N = rows of a weight (its outputs), K = columns (its inputs).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

TINY = 1e-12  # scale of a row of zeros


class Scheme(NamedTuple):
    """What a scheme stores, and the words that compressed-tensors has for it."""

    dtype: torch.dtype
    largest: float
    type: str
    format: str


SCHEMES = {
    "int8": Scheme(torch.int8, 127.0, "int", "int-quantized"),
    "fp8": Scheme(torch.float8_e4m3fn, 448.0, "float", "float-quantized"),
}


def quantise(weight_NK: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """(q [N, K] in the scheme's type, scale float32 [N, 1]) with q * scale as near to the weight as rounding allows."""
    kind = SCHEMES[scheme]
    wide_NK = weight_NK.float()
    scale_N1 = (wide_NK.abs().amax(dim=1, keepdim=True) / kind.largest).clamp_min(TINY)
    scaled_NK = (wide_NK / scale_N1).clamp(-kind.largest, kind.largest)
    return (scaled_NK.round() if scheme == "int8" else scaled_NK).to(kind.dtype), scale_N1


def relative_error(weight_NK: Tensor, q_NK: Tensor, scale_N1: Tensor) -> float:
    """Root mean square of what quantisation changed, over that of the weight; 0 for a weight of zeros."""
    wide_NK = weight_NK.float()
    size = float(wide_NK.square().sum())
    return float((wide_NK - q_NK.float() * scale_N1).square().sum() / size) ** 0.5 if size else 0.0


def quantization_config(scheme: str, ignored: list[str]) -> dict[str, Any]:
    """`quantization_config` of config.json: every linear module but the `ignored` ones."""
    kind = SCHEMES[scheme]
    common = {"num_bits": 8, "type": kind.type, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": common | {"strategy": "channel", "dynamic": False},
        "input_activations": common | {"strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": kind.format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignored,
    }
