"""What the server reads of an EAGLE-3 checkpoint: keys, tensor names and shapes, traps (contract 1.3, 1.4, 2.2, 9).

Named by `ALGORITHM.format`; used by the exporter's check and by the linter.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from algorithms.contract import CheckpointFormat, FormatRule
from algorithms.shapes import (
    Shapes,
    attention_shapes,
    mlp_shapes,
    norm_shapes,
    optional_head_shapes,
    required_head_shapes,
)

ARCHITECTURES = ("llama", "qwen3")
DEFAULT_AUX_COUNT = 3  # what the server sizes a llama draft's fc for, whatever the list of layer ids says


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


def required_tensors(config: dict[str, Any]) -> Shapes:
    """Shape by name of every tensor that the server would otherwise leave uninitialised, in silence."""
    layer = config["transformer_layer_config"]
    width = layer["hidden_size"]
    shapes: Shapes = {"norm.weight": (width,), "layers.0.hidden_norm.weight": (width,)} | _features(config)
    for index in range(layer["num_hidden_layers"]):
        # The first layer reads [embedding; state].
        shapes |= attention_shapes(layer, index, width if index else 2 * width)
        shapes |= mlp_shapes(layer, index) | norm_shapes(layer, index)
    return shapes | required_head_shapes(config)


def optional_tensors(config: dict[str, Any]) -> Shapes:
    """Shape by name of tensors that may be left out: the server takes the verifier's, or does not read them."""
    layer = config["transformer_layer_config"]
    unread = {f"layers.{i}.hidden_norm.weight": (layer["hidden_size"],) for i in range(1, layer["num_hidden_layers"])}
    return optional_head_shapes(config) | unread


def _architecture(config: dict[str, Any], _: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    """The server has two kinds of layers for such drafts, both with a cache."""
    layer = config["transformer_layer_config"]
    if layer["model_type"] not in ARCHITECTURES:
        yield f"model_type {layer['model_type']!r}", f"use {' or '.join(ARCHITECTURES)}: the server has no other"
    if layer.get("is_causal") is False:
        yield "is_causal false: attention without a cache", "remove is_causal"


def _aux_count(config: dict[str, Any], _: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    """The server does not count the layer ids of a llama draft."""
    layer, count = config["transformer_layer_config"], len(config["eagle_aux_hidden_state_layer_ids"])
    default = DEFAULT_AUX_COUNT if layer["model_type"] == "llama" else count
    served = layer.get("num_aux_hidden_states", default)
    if served != count:
        found = f"{count} layer ids, but the server sizes fc for {served}"
        yield found, f"write num_aux_hidden_states: {count} into transformer_layer_config"


def _attention_bias(config: dict[str, Any], _: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Biases of qwen3 layers are built for three projections of four."""
    layer = config["transformer_layer_config"]
    if layer["model_type"] == "qwen3" and layer.get("attention_bias"):
        yield "attention_bias with qwen3: the server drops o_proj.bias in silence", "train without attention biases"


def _feature_norms(config: dict[str, Any], _: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Trainers take one norm of the verifier's states or the other."""
    if config.get("norm_before_fc") and config.get("fc_norm"):
        yield "norm_before_fc and fc_norm are both true: the server applies both", "train with one of them"


# Traps of the network that EAGLE-3 and P-EAGLE share.
NETWORK_RULES = (
    FormatRule("draft-architecture", _architecture),
    FormatRule("aux-count", _aux_count),
    FormatRule("attention-bias", _attention_bias),
)

FORMAT = CheckpointFormat(
    Keys=Keys,
    required_tensors=required_tensors,
    optional_tensors=optional_tensors,
    rules=(*NETWORK_RULES, FormatRule("feature-norms", _feature_norms)),
)
