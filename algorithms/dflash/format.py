"""What the server reads of a DFlash checkpoint: keys, tensor names and shapes, traps (contract 1.3, 1.4, 2.3, 9).

Named by `ALGORITHM.format`; used by the exporter's check and by the linter. `BlockKeys`, the tensor tables and
`BLOCK_RULES` are the part that DFlash-2 and DSpark share.
"""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from algorithms.contract import CheckpointFormat, FormatRule
from algorithms.exporting import speculative_tokens
from algorithms.shapes import (
    Shapes,
    attention_shapes,
    mlp_shapes,
    norm_shapes,
    optional_head_shapes,
    required_head_shapes,
)

Said = Iterator[tuple[str, str]]


class BlockKeys(BaseModel):
    """Top-level keys of config.json that all block drafts have."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    draft_vocab_size: int | None = Field(description="write the number of draft tokens, or null for all")
    aux_hidden_state_layer_ids: list[int] = Field(
        min_length=1, description="write the trained layer ids: the server stops where they are absent"
    )
    mask_token_id: int = Field(ge=0, description="write the trained mask token: the server stops where it is absent")
    target_hidden_size: int | None = Field(None, ge=1, description="write the verifier's width")
    block_size: int | None = Field(None, ge=1, description="write the rows of a block in training")


class Keys(BlockKeys):
    """Keys of DFlash. Those without a default mean something else to the server when left out."""

    sliding_window_non_causal: bool = Field(
        description="write true for bidirectional blocks, false for causal ones: it decides for layers of every kind"
    )
    sample_from_anchor: Literal[False] = Field(False, description="use false: the server has nothing else here")


def required_tensors(config: dict[str, Any]) -> Shapes:
    """Shape by name of every tensor that the server would otherwise leave uninitialised, in silence."""
    layer = config["transformer_layer_config"]
    width, count = layer["hidden_size"], len(config["aux_hidden_state_layer_ids"])
    shapes: Shapes = {
        "fc.weight": (width, count * (config.get("target_hidden_size") or width)),
        "hidden_norm.weight": (width,),
        "norm.weight": (width,),
    }
    for index in range(layer["num_hidden_layers"]):
        # Whatever the file says, the server's layers are of the Qwen3 kind.
        shapes |= attention_shapes(layer | {"model_type": "qwen3"}, index, width)
        shapes |= mlp_shapes(layer, index) | norm_shapes(layer, index)
    return shapes | required_head_shapes(config)


def optional_tensors(config: dict[str, Any]) -> Shapes:
    """Shape by name of tensors that may be left out: the server takes the verifier's, or does not read them."""
    return optional_head_shapes(config)


def _architecture(config: dict[str, Any], _: dict[str, Tensor]) -> Said:
    """The server builds one kind of layer for such drafts, and one key would overrule its causality."""
    layer = config["transformer_layer_config"]
    if layer["model_type"] != "qwen3":
        yield f"model_type {layer['model_type']!r}: the server builds Qwen3 layers all the same", "write qwen3"
    if layer.get("is_causal") is not None:
        yield f"is_causal {layer['is_causal']}: it overrides the causality of the blocks", "remove is_causal"
    if layer.get("attention_bias"):
        yield "attention_bias: this project's block drafts have none", "train without attention biases"


def _one_kind_of_layer(config: dict[str, Any], _: dict[str, Tensor]) -> Said:
    """Sliding and full attention in one draft."""
    kinds = sorted(set(config["transformer_layer_config"].get("layer_types") or ()))
    if len(kinds) > 1:
        yield f"layer_types {', '.join(kinds)}: not every runner of the server has mixed layers", "use one kind"


def _mask_token(config: dict[str, Any], _: dict[str, Tensor]) -> Said:
    """The mask is one of the verifier's tokens."""
    mask, vocabulary = config["mask_token_id"], config["transformer_layer_config"]["vocab_size"]
    if mask >= vocabulary:
        yield f"mask_token_id {mask} of {vocabulary} tokens", "train with a token of the verifier's"


def _block_size(config: dict[str, Any], _: dict[str, Tensor]) -> Said:
    """Bidirectional rows see how many they are; causal rows do not see what comes behind them."""
    size, tokens = config.get("block_size"), speculative_tokens(config)
    if size is None:
        return
    if tokens > size - 1:
        yield f"{tokens} speculative tokens from blocks of {size} rows", f"write {size - 1} speculative tokens"
    elif tokens < size - 1 and config["sliding_window_non_causal"]:
        found = f"{tokens} speculative tokens from bidirectional blocks of {size} rows"
        yield found, f"write {size - 1} speculative tokens: other numbers of rows were not trained"


def _causality(config: dict[str, Any], _: dict[str, Tensor]) -> Said:
    """The reference trainer's full-attention blocks are bidirectional whatever its flag says; the server obeys it."""
    kinds = config["transformer_layer_config"].get("layer_types") or ["full_attention"]
    trained_elsewhere = "speculators_version" in config
    if trained_elsewhere and "full_attention" in kinds and not config["sliding_window_non_causal"]:
        found = "sliding_window_non_causal false, but its trainer makes blocks of full attention bidirectional"
        yield found, "write sliding_window_non_causal: true"


BLOCK_RULES = (
    FormatRule("draft-architecture", _architecture),
    FormatRule("layer-kinds", _one_kind_of_layer),
    FormatRule("mask-token", _mask_token),
)
FORMAT = CheckpointFormat(
    Keys=Keys,
    required_tensors=required_tensors,
    optional_tensors=optional_tensors,
    rules=(*BLOCK_RULES, FormatRule("block-size", _block_size), FormatRule("block-causality", _causality)),
)
