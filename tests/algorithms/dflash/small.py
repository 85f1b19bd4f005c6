"""A tiny verifier, drafts of random weights, packs, and the engine's block computed densely. For tests of block drafts.

Shape letters: S = positions, T = rows of a block, H = width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import algorithms
from algorithms.contract import Batch, VerifierWeights
from algorithms.vocabulary import choose

WIDTH, VOCABULARY, AUX, MASK, HEAD = 32, 61, [1, 2, 4], 60, 8
EPSILON, THETA = 1e-5, 100.0


def verifier_weights(seed: int = 0) -> VerifierWeights:
    generator = torch.Generator().manual_seed(seed)
    config = {
        "hidden_size": WIDTH, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": HEAD, "vocab_size": VOCABULARY, "max_position_embeddings": 256, "rms_norm_eps": EPSILON,
        "num_hidden_layers": 5, "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
    }  # fmt: skip
    random = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return VerifierWeights(config, random(VOCABULARY, WIDTH), random(VOCABULARY, WIDTH), 1 + 0.3 * random(WIDTH))


def make_draft(algorithm: str = "dflash", draft_vocab_size: int | None = 40, seed: int = 1, **settings) -> nn.Module:
    """Every parameter random, so that no part is the identity."""
    kind = algorithms.load(algorithm)
    config = kind.Config(
        **{"speculative_tokens": 3, "mask_token_id": MASK, "draft_vocab_size": draft_vocab_size} | settings
    )
    counts = torch.randint(0, 9, (VOCABULARY,), generator=torch.Generator().manual_seed(5))
    draft = kind.build(config, verifier_weights(), choose(counts, draft_vocab_size or VOCABULARY), AUX)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if parameter.dim() == 1 else 0.3 * noise)
    return draft


def sequence(length: int, seed: int = 3) -> tuple[Tensor, Tensor]:
    """(tokens, verifier states); the mask token does not occur."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, MASK, (length,), generator=generator)
    return tokens, torch.randn(length, len(AUX), WIDTH, generator=generator)


def pack(lengths: list[int], prompts: list[int], seed: int = 3, draw: int = 0) -> Batch:
    tokens, states = sequence(sum(lengths), seed)
    last = torch.randn(sum(lengths), WIDTH, generator=torch.Generator().manual_seed(seed + 1))
    document = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])
    mask = torch.cat([torch.arange(n) >= p for n, p in zip(lengths, prompts, strict=True)])
    return Batch(tokens, states, last, mask, document, draw)


def assert_near(got: Tensor, want: Tensor) -> None:
    """Equal up to float32 rounding: relative error of the whole vector, as one small entry alone says nothing."""
    assert ((got - want).norm() / want.norm()).item() < 1e-5


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * weight


def turned(x: Tensor, positions: Tensor) -> Tensor:
    size = x.shape[-1]
    angle = positions.float()[:, None] / THETA ** (torch.arange(0, size, 2).float() / size)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., : size // 2], x[..., size // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def dense_block(
    draft: nn.Module, token: int, states_SAH: Tensor, rows: int, causal: bool, window: int | None
) -> Tensor:
    """One block behind S context positions with plain tensors: contract 4.4, written apart from the product's code."""
    weights = dict(draft.named_parameters())
    before, own = torch.arange(len(states_SAH)), torch.arange(rows) + len(states_SAH)
    everything = torch.cat((before, own))
    gap = own[:, None] - everything
    seen = gap.abs() < window if window else torch.ones_like(gap, dtype=torch.bool)
    seen = seen & (gap >= 0) if causal else seen
    context = rms(states_SAH.flatten(1) @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    state = draft.embedding_VH[torch.tensor([token] + [MASK] * (rows - 1))]
    for depth in range(draft.shape.layer["num_hidden_layers"]):
        get = lambda name, depth=depth: weights[f"layers.{depth}.{name}.weight"]  # noqa: E731
        read = rms(state, get("input_layernorm"))
        both = torch.cat((context, read))
        q = (read @ get("self_attn.q_proj").T).view(rows, -1, HEAD)
        k, v = ((both @ get(f"self_attn.{name}_proj").T).view(len(both), -1, HEAD) for name in "kv")
        q = turned(rms(q, get("self_attn.q_norm")), own)
        k = turned(rms(k, get("self_attn.k_norm")), everything).repeat_interleave(2, 1)
        score = torch.einsum("qhd,khd->hqk", q, k) * HEAD**-0.5
        weight = score.masked_fill(~seen, float("-inf")).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weight, v.repeat_interleave(2, 1)).reshape(rows, -1)
        state = state + mixed @ get("self_attn.o_proj").T
        inner = rms(state, get("post_attention_layernorm"))
        gated = F.silu(inner @ get("mlp.gate_proj").T) * (inner @ get("mlp.up_proj").T)
        state = state + gated @ get("mlp.down_proj").T
    return rms(state, weights["norm.weight"])
