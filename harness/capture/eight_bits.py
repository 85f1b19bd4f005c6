"""Hidden states in 8 bits: half the disk and half the reading of bfloat16, at an error that every manifest states.

Called by `store`, which packs a shard when it writes it and unpacks a document when it is read. A state has a few
channels that are thousands of times as large as the rest, and a few positions (the first of a text) that are large in
them: a scale for each row alone would round all other channels to nothing, one for each channel alone would do so to
ordinary positions. So each number is q * row scale * channel scale; channels are made alike first.

Shape letters: T = positions of one shard, S = positions of one document, L = layers, H = width.
"""

import torch
from torch import Tensor

LEVELS = 127
SCALE_BYTES = 4  # of a row's scale, in float32
TINY = 1e-20  # no scale is zero, also where all numbers are


def pack(states_TLH: Tensor) -> tuple[dict[str, Tensor], list[float]]:
    """The tensors that a shard keeps, and for each layer the mean over positions of |stored - given| / |given|.

    Keeps `states` int8 [T, L, H], `row_scale` float32 [T, L] and `channel_scale` float32 [L, H].
    """
    packed = [_pack_layer(states_TH) for states_TH in states_TLH.unbind(1)]
    states, rows, channels = (
        torch.stack(parts, dim) for parts, dim in zip(zip(*packed, strict=True), (1, 1, 0), strict=True)
    )
    tensors = {"states": states, "row_scale": rows, "channel_scale": channels}
    errors = [
        _error(unpack(states[:, [i]], rows[:, [i]], channels[[i]], torch.float32)[:, 0], states_TLH[:, i])
        for i in range(states.shape[1])
    ]
    return tensors, errors


def _pack_layer(states_TH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    states_TH = states_TH.float()
    channel_H = (states_TH.abs().sum(0) / max(1, len(states_TH))).clamp_min(TINY)
    alike_TH = states_TH / channel_H
    row_T = alike_TH.abs().amax(-1).clamp_min(TINY) / LEVELS
    return (alike_TH / row_T[:, None]).round().to(torch.int8), row_T, channel_H


def unpack(states_SLH: Tensor, row_scale_SL: Tensor, channel_scale_LH: Tensor, dtype: torch.dtype) -> Tensor:
    """States [S, L, H] in `dtype`."""
    return (states_SLH * row_scale_SL[..., None]).mul_(channel_scale_LH).to(dtype)


def _error(stored_TH: Tensor, given_TH: Tensor) -> float:
    if not len(given_TH):
        return 0.0
    given_TH = given_TH.float()
    return float(((stored_TH - given_TH).norm(dim=-1) / given_TH.norm(dim=-1).clamp_min(TINY)).mean())
