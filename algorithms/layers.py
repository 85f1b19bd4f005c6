"""Building blocks that drafts share: norm, rotary positions, projections of attention, gated MLP.

Shape letters: R = rows (positions of packed documents), N = heads, G = key-value heads, D = head size,
H = width.
Parameter names equal the checkpoint's (contract 2.2), so a state dict is exported as it is.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


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


class Recomputing(nn.Module):
    """A layer that can compute parts of itself once more in the backward pass instead of keeping what they computed.

    Attributes:
        recompute: whether it does. Set on a built draft; results are the same, bit for bit.
    """

    recompute = False

    def once_more(self, part: Callable[..., Any], *given: Any) -> Any:
        """`part(*given)`; what was given must not change before the backward pass."""
        if not self.recompute:
            return part(*given)
        return checkpoint(part, *given, use_reentrant=False, preserve_rng_state=False)


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


# Keys of `rope_parameters` that make the server turn heads in a way that is not written here.
OTHER_ROPES = ("mrope_section", "use_fope", "rope_dim")


def plain_rope(rope: dict[str, Any]) -> dict[str, Any]:
    """The rope of a draft whose verifier may also read images: its multimodal keys are left out.

    Text has one position for all three axes, so the sections turn it as plain RoPE does. Behind an image the verifier's
    positions fall short of the count of tokens; a draft counts tokens, as the server's second runner has it.
    """
    plain = {key: value for key, value in rope.items() if not key.startswith("mrope_")}
    return plain | ({"rope_type": "default"} if rope.get("rope_type") == "mrope" else {})


def rope_of(verifier: dict[str, Any]) -> dict[str, Any]:
    """`rope_parameters` for a draft beside a verifier: those of its text config, older keys folded in (contract 1.3).

    A rope for each type of layer is given as it is: no draft can take it over.
    """
    rope = verifier.get("rope_parameters")
    if not rope:
        rope = {**(verifier.get("rope_scaling") or {}), "rope_theta": verifier.get("rope_theta")}
    if any(isinstance(value, dict) for value in rope.values()):
        return rope
    rope = plain_rope({"rope_type": rope.get("type", "default"), **rope})
    return {key: value for key, value in rope.items() if value is not None and key != "type"}


def _llama3(frequencies: Tensor, rope: dict[str, Any]) -> Tensor:
    """Slow the long wave lengths down as Llama 3.1 does, with a smooth middle band."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    wave_lengths = 2 * math.pi / frequencies
    share = (rope["original_max_position_embeddings"] / wave_lengths - low) / (high - low)
    share = share.clamp(0.0, 1.0)
    return (1 - share) * frequencies / factor + share * frequencies


def _yarn(frequencies: Tensor, rope: dict[str, Any]) -> Tensor:
    """YaRN (arXiv 2309.00071): pairs that turn often within the original length are kept, slow ones are slowed down."""
    pairs, length = frequencies.numel(), rope["original_max_position_embeddings"]

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(length / (times * 2 * math.pi)) / math.log(rope["rope_theta"])

    first, last = pair_that_turns(rope.get("beta_fast", 32)), pair_that_turns(rope.get("beta_slow", 1))
    if rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    width = last - first if last != first else 0.001
    kept = 1 - ((torch.arange(pairs, dtype=torch.float32) - first) / width).clamp(0, 1)
    return frequencies / rope["factor"] * (1 - kept) + frequencies * kept


def _unscaled(frequencies: Tensor, _: dict[str, Any]) -> Tensor:
    return frequencies


# rope_type -> frequencies by plain frequencies and config. Linear scaling divides the positions instead.
ROPES = {"default": _unscaled, "linear": _unscaled, "llama3": _llama3, "yarn": _yarn}


def rotary_frequencies(rope: dict[str, Any], head_dim: int) -> Tensor:
    """Radians per position of each rotated pair, float32 [turned part of the head / 2].

    Args:
        rope: `rope_parameters` of a config (contract 1.3). With a `partial_rotary_factor` only the first part of each
            head is turned.

    Raises:
        ValueError: a kind of rope that is not written here: never the default in silence.
    """
    kind = rope.get("rope_type", "default")
    if "rope_theta" not in rope:
        raise ValueError(f"rope_parameters = {rope}: no rope_theta. Fix: use a verifier with one rope for all layers")
    if kind not in ROPES:
        raise ValueError(f"rope_type = {kind!r} is not supported. Fix: use a verifier with {', '.join(ROPES)}")
    for key in OTHER_ROPES:
        if rope.get(key):
            raise ValueError(f"rope_parameters: {key} = {rope[key]!r} is not supported. Fix: use a draft without it")
    size = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
    return ROPES[kind](1.0 / rope["rope_theta"] ** exponents, rope)


def _yarn_length(factor: float, scale: float = 1.0) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def rotary_length(rope: dict[str, Any]) -> float:
    """What cosine and sine are multiplied with: YaRN lengthens heads, as the server does (its `mscale`)."""
    if rope.get("rope_type") != "yarn":
        return 1.0
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    scale, of_all = rope.get("mscale"), rope.get("mscale_all_dim")
    if scale and of_all:
        return _yarn_length(rope["factor"], scale) / _yarn_length(rope["factor"], of_all)
    return _yarn_length(rope["factor"])


class Rotary(nn.Module):
    """Rotary position embedding over two halves of the head's first part ("neox" order), as the engine applies it."""

    def __init__(self, rope: dict[str, Any], head_dim: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", rotary_frequencies(rope, head_dim), persistent=False)
        self.divisor = rope["factor"] if rope.get("rope_type") == "linear" else 1.0
        self.length = rotary_length(rope)

    def angles(self, positions_R: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine, float32 [R, 1, turned part / 2] each, shared by every layer."""
        angle = (positions_R.float() / self.divisor)[:, None, None] * self.frequencies
        return angle.cos() * self.length, angle.sin() * self.length

    @staticmethod
    def rotate(x_RND: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Turn the heads of each row, in float32; dtype is kept, and so is what lies behind the turned part.

        One row of heads is turned to every row of the angles.
        """
        cosine, sine = angles
        half = cosine.shape[-1]
        first, second, rest = x_RND.float().expand(len(cosine), -1, -1).tensor_split((half, 2 * half), dim=-1)
        turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), dim=-1)
        return turned.to(x_RND.dtype)


Place = Callable[[Tensor], Tensor]


def _as_they_are(heads_RND: Tensor) -> Tensor:
    return heads_RND


class Attention(nn.Module):
    """Projections of one layer; the mixing itself is `algorithms.attention.attend`."""

    def __init__(self, layer: dict[str, Any], input_width: int) -> None:
        super().__init__()
        heads, groups, size = layer["num_attention_heads"], layer["num_key_value_heads"], layer["head_dim"]
        bias = bool(layer.get("attention_bias"))  # of drafts that other projects trained
        self.q_proj = nn.Linear(input_width, heads * size, bias=bias)
        self.k_proj = nn.Linear(input_width, groups * size, bias=bias)
        self.v_proj = nn.Linear(input_width, groups * size, bias=bias)
        self.o_proj = nn.Linear(heads * size, layer["hidden_size"], bias=bias)
        if layer["model_type"] == "qwen3":
            self.q_norm = RMSNorm(size, layer["rms_norm_eps"])
            self.k_norm = RMSNorm(size, layer["rms_norm_eps"])
        self.head_dim = size

    def query(self, x_RH: Tensor, angles: tuple[Tensor, Tensor], place: Place = _as_they_are) -> Tensor:
        """[R, N, D], normed where the architecture does, turned by position.

        Args:
            place: from the heads of what is read, [..., N, D], to those of the rows that the angles are of.
        """
        query = self.q_proj(x_RH).unflatten(-1, (-1, self.head_dim))
        return Rotary.rotate(place(self.q_norm(query) if hasattr(self, "q_norm") else query), angles)

    def key_value(
        self, x_RH: Tensor, angles: tuple[Tensor, Tensor], place: Place = _as_they_are
    ) -> tuple[Tensor, Tensor]:
        """Keys (normed, turned) and values, [R, G, D] each; `place` as in `query`."""
        key = self.k_proj(x_RH).unflatten(-1, (-1, self.head_dim))
        key = Rotary.rotate(place(self.k_norm(key) if hasattr(self, "k_norm") else key), angles)
        return key, place(self.v_proj(x_RH).unflatten(-1, (-1, self.head_dim))).expand_as(key)
