"""Drafts computed densely with plain tensors, written apart from the product's code: contract 4.1 and 4.4.

What `<algorithm>/test_draft.py` compares the product with. Shape letters: S = positions, T = rows of a block,
N = slots, H = width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.algorithms.small import EPSILON, HEAD, MASK, THETA

Weight = Callable[[str], Tensor]  # a layer's weight by its name within the layer
# (sublayer, its rows, the normed rows that it started from, 0 in front of it and 1 behind) -> the rows instead.
Around = Callable[[str, Tensor, Tensor, int], Tensor]


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * weight


def turned(x: Tensor, positions: Tensor) -> Tensor:
    size = x.shape[-1]
    angle = positions.float()[:, None] / THETA ** (torch.arange(0, size, 2).float() / size)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., : size // 2], x[..., size // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def layer_weights(draft: nn.Module, depth: int) -> Weight:
    weights = dict(draft.named_parameters())
    return lambda name: weights[f"layers.{depth}.{name}.weight"]


def attended(
    get: Weight, read: Tensor, places: Tensor, keys: Tensor, key_places: Tensor, seen: Tensor, head_norm: bool
) -> Tensor:
    """Attention of the rows `read` over `keys`; row q of `seen` is true on the keys that row q sees."""
    q = (read @ get("self_attn.q_proj").T).view(len(read), -1, HEAD)
    k, v = ((keys @ get(f"self_attn.{name}_proj").T).view(len(keys), -1, HEAD) for name in "kv")
    if head_norm:
        q, k = rms(q, get("self_attn.q_norm")), rms(k, get("self_attn.k_norm"))
    q, k = turned(q, places), turned(k, key_places).repeat_interleave(2, 1)
    score = torch.einsum("qhd,khd->hqk", q, k) * HEAD**-0.5
    weight = score.masked_fill(~seen, float("-inf")).softmax(-1)
    mixed = torch.einsum("hqk,khd->qhd", weight, v.repeat_interleave(2, 1)).reshape(len(read), -1)
    return mixed @ get("self_attn.o_proj").T


def gated(get: Weight, read: Tensor) -> Tensor:
    return (F.silu(read @ get("mlp.gate_proj").T) * (read @ get("mlp.up_proj").T)) @ get("mlp.down_proj").T


def dense_forward(
    draft: nn.Module, embedding: Tensor, state: Tensor, positions: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """One whole pass over all slots, whose first layer reads [embedding; state]: contract 4.1.

    Row q of `mask` is true on the slots that slot q sees. Returns the stream and the normed output, both [N, H].
    """
    shape = draft.shape
    head_norm = shape.layer["model_type"] == "qwen3"
    for depth in range(shape.layer["num_hidden_layers"]):
        get = layer_weights(draft, depth)
        if depth == 0:
            normed = rms(state, get("hidden_norm"))
            residual = normed if shape.norm_before_residual else state
            read = torch.cat([rms(embedding, get("input_layernorm")), normed], -1)
        else:
            residual, read = state, rms(state, get("input_layernorm"))
        state = residual + attended(get, read, positions, read, positions, mask, head_norm)
        state = state + gated(get, rms(state, get("post_attention_layernorm")))
    return state, rms(state, draft.norm.weight)


def dense_block(
    draft: nn.Module, token: int, states_SAH: Tensor, rows: int, around: Around = lambda _, rows_TH, *__: rows_TH
) -> Tensor:
    """One block behind S context positions, post-norm states [T, H]: contract 4.4.

    Args:
        around: see `Around`; the sublayers are `layers.<depth>.attention` and `layers.<depth>.mlp`.
    """
    shape = draft.shape
    before, own = torch.arange(len(states_SAH)), torch.arange(rows) + len(states_SAH)
    everything = torch.cat((before, own))
    gap = own[:, None] - everything
    seen = gap.abs() < shape.sliding_window if shape.sliding_window else torch.ones_like(gap, dtype=torch.bool)
    seen = seen & (gap >= 0) if shape.causal else seen
    context = rms(states_SAH.flatten(1) @ draft.fc.weight.T, draft.hidden_norm.weight)
    state = draft.embedding_VH[torch.tensor([token] + [MASK] * (rows - 1))]
    for depth in range(shape.layer["num_hidden_layers"]):
        get, attention, mlp = layer_weights(draft, depth), f"layers.{depth}.attention", f"layers.{depth}.mlp"
        normed = rms(state, get("input_layernorm"))
        read = around(attention, normed, normed, 0)
        mixed = attended(get, read, own, torch.cat((context, read)), everything, seen, head_norm=True)
        state = state + around(attention, mixed, normed, 1)
        normed = rms(state, get("post_attention_layernorm"))
        changed = gated(get, around(mlp, normed, normed, 0))
        state = state + around(mlp, changed, normed, 1)
    return rms(state, draft.norm.weight)
