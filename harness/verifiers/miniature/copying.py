"""Starts a miniature with the two attention heads that copying takes, so that training need not chance upon them.

Called by `build` before the first step. A head of the first layer writes down which token came before; heads of the
second look where the present token came before and say what followed it. Trained from noise, a model of this size
finds that pair late or never, by luck of the seed. It is a start and no more: training changes every weight of it, and
a miniature is a test article of ours, whose weights nobody's results rest on.

Shape letters: V = vocabulary, H = hidden size, D = dimensions of a head.
"""

import math
from typing import Any

import torch
from torch import Tensor

SPREAD = 0.1  # of an embedding's entries; its constant part is as large
BEFORE_SCORE, SAME_SCORE = 20.0, 12.0  # attention scores of a hit, before the softmax
BEFORE_PAIRS = 3  # quick rotary pairs that tell a place from the next one
REACH = 100  # tokens over which a rotary pair turns by less than one radian to be of use for the match
COPY_GAIN = 4.0


def start_with_copying(model: Any, seed: int) -> None:
    """Set embedding, head and parts of the first two layers' attention of `model`, in place.

    Args:
        model: a causal language model of one of `families`, fresh.
        seed: of the random directions; one seed gives the same start.
    """
    generator = torch.Generator().manual_seed(seed)
    embedding_VH, head_VH = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    hidden, width = embedding_VH.shape[1], model.config.get_text_config().head_dim
    basis_HH = torch.randn(hidden, hidden, generator=generator)
    basis_HH[:, 0] = 1.0  # the constant part
    basis_HH = torch.linalg.qr(basis_HH).Q.T
    constant_H, now_DH, before_DH = basis_HH[0], basis_HH[1 : 1 + width], basis_HH[1 + width : 1 + 2 * width]
    said_DH = basis_HH[1 + 2 * width : 1 + 3 * width]
    with torch.no_grad():
        made_VH = torch.randn(embedding_VH.shape, generator=generator) * SPREAD
        made_VH -= made_VH @ before_DH.T @ before_DH + made_VH @ torch.outer(constant_H, constant_H)
        embedding_VH.copy_(made_VH + SPREAD * math.sqrt(hidden) * constant_H)
        head_VH.copy_(embedding_VH)
        decoder = model.get_decoder()
        frequency = decoder.rotary_emb.inv_freq
        first, second = (layer.self_attn for layer in decoder.layers[:2])
        _look_at_the_token_before(first, frequency, constant_H, now_DH, before_DH)
        _look_after_the_same_token(second, frequency, now_DH, before_DH, said_DH)


def _look_at_the_token_before(
    attention: Any, frequency: Tensor, constant_H: Tensor, now_DH: Tensor, before_DH: Tensor
) -> None:
    """Head 0: the key is the same everywhere, the query is that key turned back by one place."""
    width, half = now_DH.shape[0], now_DH.shape[0] // 2
    key_D, query_D = torch.zeros(width), torch.zeros(width)
    key_D[:BEFORE_PAIRS] = 1.0
    query_D[:BEFORE_PAIRS] = frequency[:BEFORE_PAIRS].cos()
    query_D[half : half + BEFORE_PAIRS] = -frequency[:BEFORE_PAIRS].sin()
    query_DH, key_DH = torch.outer(query_D, constant_H), torch.outer(key_D, constant_H)
    _aim(attention, 0, 0, query_DH, key_DH, BEFORE_SCORE, BEFORE_PAIRS * constant_H.numel() / 2)
    attention.v_proj.weight[:width] = now_DH
    attention.o_proj.weight[:, :width] = before_DH.T * (SPREAD * math.sqrt(2))


def _look_after_the_same_token(
    attention: Any, frequency: Tensor, now_DH: Tensor, before_DH: Tensor, said_DH: Tensor
) -> None:
    """One head of each group: present token against the one before, over the rotary pairs that turn slowly."""
    width = now_DH.shape[0]
    slow = torch.nonzero(frequency * REACH < 1).flatten()
    places = torch.cat([slow, slow + width // 2])
    group = attention.config.num_attention_heads // attention.config.num_key_value_heads
    for kv, (values_DH, used) in enumerate(
        ((said_DH, slice(len(places))), (now_DH, slice(width - len(places), width)))
    ):
        head = kv * group
        query_DH, key_DH = torch.zeros_like(now_DH), torch.zeros_like(now_DH)
        query_DH[places], key_DH[places] = now_DH[used], before_DH[used]
        _aim(attention, head, kv, query_DH, key_DH, SAME_SCORE, len(places) / 2)
        attention.v_proj.weight[kv * width : (kv + 1) * width] = values_DH
        attention.o_proj.weight[:, head * width : (head + 1) * width] = values_DH.T * (COPY_GAIN * SPREAD)


def _aim(attention: Any, head: int, kv: int, query_DH: Tensor, key_DH: Tensor, score: float, product: float) -> None:
    """Set a query and a key so that a hit scores `score`; `product` is what they give for it as they are."""
    width = query_DH.shape[0]
    if hasattr(attention, "q_norm"):  # whatever the length, the norm's weights alone decide
        gain = math.sqrt(score / math.sqrt(width))
        attention.q_norm.weight.fill_(gain)
        attention.k_norm.weight.fill_(gain)
        scale = 1.0
    else:
        scale = math.sqrt(score * math.sqrt(width) / product)
    attention.q_proj.weight[head * width : (head + 1) * width] = query_DH * scale
    attention.k_proj.weight[kv * width : (kv + 1) * width] = key_DH * scale
