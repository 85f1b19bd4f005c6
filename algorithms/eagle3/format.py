"""What the server reads of an EAGLE-3 checkpoint: keys, tensor names and shapes, traps (contract 1.3, 1.4, 2.2, 9).

Named by `ALGORITHM.format`; used by the exporter's check and by the linter.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from algorithms.contract import CheckpointFormat, FormatRule

ARCHITECTURES = ("llama", "qwen3")
DEFAULT_AUX_COUNT = 3  # what the server sizes a llama draft's fc for, whatever the list of layer ids says

Shapes = dict[str, tuple[int, ...]]


class Keys(BaseModel):
    """Top-level keys of config.json. Those without a default mean something else to the server when left out."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    draft_vocab_size: int | None = Field(description="write the number of draft tokens, or null for all")
    norm_before_residual: bool = Field(description="write it: the server takes true where it is absent")
    eagle_aux_hidden_state_layer_ids: list[int] = Field(
        min_length=1, description="write the trained layer ids: the server guesses (2, n/2, n-3) where they are absent"
    )
    norm_before_fc: bool = Field(False, description="use true or false")
    fc_norm: bool = Field(False, description="use true or false")
    norm_output: bool = Field(False, description="use true or false")
    target_hidden_size: int | None = Field(None, ge=1, description="write the verifier's width")


def _attention(layer: dict[str, Any], index: int) -> Shapes:
    width, head = layer["hidden_size"], layer["head_dim"]
    query, key = layer["num_attention_heads"] * head, layer["num_key_value_heads"] * head
    wide = 2 * width if index == 0 else width
    shapes: Shapes = {
        "q_proj.weight": (query, wide),
        "k_proj.weight": (key, wide),
        "v_proj.weight": (key, wide),
        "o_proj.weight": (width, query),
    }
    if layer["model_type"] == "qwen3":
        shapes |= {"q_norm.weight": (head,), "k_norm.weight": (head,)}
    if layer.get("attention_bias"):
        shapes |= {"q_proj.bias": (query,), "k_proj.bias": (key,), "v_proj.bias": (key,)}
        if layer["model_type"] == "llama":
            shapes["o_proj.bias"] = (width,)
    return {f"layers.{index}.self_attn.{name}": shape for name, shape in shapes.items()}


def _mlp(layer: dict[str, Any], index: int) -> Shapes:
    width, inner = layer["hidden_size"], layer["intermediate_size"]
    shapes: Shapes = {"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)}
    found: Shapes = {f"layers.{index}.mlp.{name}.weight": shape for name, shape in shapes.items()}
    if layer["model_type"] == "llama" and layer.get("mlp_bias"):
        found |= {f"layers.{index}.mlp.{name}.bias": shape[:1] for name, shape in shapes.items()}
    return found


def _features(config: dict[str, Any]) -> Shapes:
    """The projection of the verifier's states and the norms that its flags ask for."""
    width = config["transformer_layer_config"]["hidden_size"]
    verifier_width = config.get("target_hidden_size") or width
    count = len(config["eagle_aux_hidden_state_layer_ids"])
    shapes: Shapes = {"fc.weight": (width, count * verifier_width)}
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (count * verifier_width,)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (verifier_width,) for i in range(count)}
    return shapes


def _is_reduced(config: dict[str, Any]) -> bool:
    return config["draft_vocab_size"] not in (None, config["transformer_layer_config"]["vocab_size"])


def required_tensors(config: dict[str, Any]) -> Shapes:
    """Shape by name of every tensor that the server would otherwise leave uninitialised, in silence."""
    layer = config["transformer_layer_config"]
    width = layer["hidden_size"]
    shapes: Shapes = {"norm.weight": (width,), "layers.0.hidden_norm.weight": (width,)} | _features(config)
    for index in range(layer["num_hidden_layers"]):
        shapes |= _attention(layer, index) | _mlp(layer, index)
        shapes |= {f"layers.{index}.{n}.weight": (width,) for n in ("input_layernorm", "post_attention_layernorm")}
    if _is_reduced(config):
        shapes |= {"lm_head.weight": (config["draft_vocab_size"], width), "d2t": (config["draft_vocab_size"],)}
    if config.get("target_hidden_size") not in (None, width):
        shapes["embed_tokens.weight"] = (layer["vocab_size"], width)  # the verifier's table has another width
    return shapes


def optional_tensors(config: dict[str, Any]) -> Shapes:
    """Shape by name of tensors that may be left out: the server takes the verifier's, or does not read them."""
    layer = config["transformer_layer_config"]
    shapes: Shapes = {"embed_tokens.weight": (layer["vocab_size"], layer["hidden_size"])}
    shapes |= {f"layers.{i}.hidden_norm.weight": (layer["hidden_size"],) for i in range(1, layer["num_hidden_layers"])}
    if _is_reduced(config):
        shapes["t2d"] = (layer["vocab_size"],)
    else:
        shapes["lm_head.weight"] = shapes["embed_tokens.weight"]
    return {name: shape for name, shape in shapes.items() if name not in required_tensors(config)}


def _architecture(config: dict[str, Any], _: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    layer = config["transformer_layer_config"]
    if layer["model_type"] not in ARCHITECTURES:
        yield f"model_type {layer['model_type']!r}", f"use {' or '.join(ARCHITECTURES)}: the server has no other"
    if layer.get("is_causal") is False:
        yield "is_causal false: attention without a cache", "remove is_causal"


def _aux_count(config: dict[str, Any], _: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    layer, count = config["transformer_layer_config"], len(config["eagle_aux_hidden_state_layer_ids"])
    default = DEFAULT_AUX_COUNT if layer["model_type"] == "llama" else count
    served = layer.get("num_aux_hidden_states", default)
    if served != count:
        found = f"{count} layer ids, but the server sizes fc for {served}"
        yield found, f"write num_aux_hidden_states: {count} into transformer_layer_config"


def _attention_bias(config: dict[str, Any], _: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    layer = config["transformer_layer_config"]
    if layer["model_type"] == "qwen3" and layer.get("attention_bias"):
        yield "attention_bias with qwen3: the server drops o_proj.bias in silence", "train without attention biases"


def _feature_norms(config: dict[str, Any], _: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    if config.get("norm_before_fc") and config.get("fc_norm"):
        yield "norm_before_fc and fc_norm are both true: the server applies both", "train with one of them"


FORMAT = CheckpointFormat(
    Keys=Keys,
    required_tensors=required_tensors,
    optional_tensors=optional_tensors,
    rules=(
        FormatRule("draft-architecture", _architecture),
        FormatRule("aux-count", _aux_count),
        FormatRule("attention-bias", _attention_bias),
        FormatRule("feature-norms", _feature_norms),
    ),
)
