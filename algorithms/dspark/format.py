"""What the server reads of a DSpark checkpoint: keys, tensor names and shapes, traps (contract 1.4, 2.3, 4.5, 4.7, 9).

Named by `ALGORITHM.format`; used by the exporter's check and by the linter.
"""

import json
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from algorithms.contract import CheckpointFormat, FormatRule
from algorithms.dflash import format as dflash
from algorithms.dspark.export import causal_by_kind, is_causal
from algorithms.exporting import speculative_tokens
from algorithms.shapes import Shapes


class Keys(dflash.BlockKeys):
    """Keys of DSpark. Those without a default mean something else to the server when left out."""

    block_size: int = Field(ge=1, description="write the rows of a block in training")
    sample_from_anchor: bool = Field(description="write it: the server takes false where it is absent, trainers true")
    markov_rank: int = Field(ge=1, description="write the rank, 1 or more: a draft without a Markov head is a dflash")
    markov_head_type: Literal["vanilla"] = Field("vanilla", description="use vanilla: the server computes no other")
    enable_confidence_head: bool = Field(description="write it: the server drops the head where it is absent")
    confidence_head_with_markov: bool = Field(description="write it: the server takes false where it is absent")
    sliding_window_non_causal: bool = Field(False, description="write false for causal blocks: trainers read it")


def _heads(config: dict[str, Any]) -> Shapes:
    layer, rank = config["transformer_layer_config"], config["markov_rank"]
    shapes: Shapes = {
        "markov_head.markov_w1.weight": (layer["vocab_size"], rank),  # by target ids
        "markov_head.markov_w2.weight": (config.get("draft_vocab_size") or layer["vocab_size"], rank),
    }
    if config["enable_confidence_head"]:
        width = layer["hidden_size"] + (rank if config["confidence_head_with_markov"] else 0)
        shapes |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
    return shapes


def required_tensors(config: dict[str, Any]) -> Shapes:
    """Shape by name of every tensor without which drafts are garbage, or the server stops."""
    return dflash.required_tensors(config) | _heads(config)


def _block_size(config: dict[str, Any], _: dict[str, Tensor]) -> dflash.Said:
    """Every row drafts, or every row but the first; bidirectional rows see how many they are."""
    size, tokens = config["block_size"], speculative_tokens(config)
    trained = size - (0 if config["sample_from_anchor"] else 1)
    anchor = str(config["sample_from_anchor"]).lower()
    found = f"{tokens} speculative tokens from blocks of {size} rows with sample_from_anchor {anchor}"
    if tokens > trained:
        yield found, f"write {trained} speculative tokens"
    elif tokens < trained and not is_causal(config["transformer_layer_config"]):
        yield found, f"write {trained} speculative tokens: other numbers of bidirectional rows were not trained"


def _causality(config: dict[str, Any], _: dict[str, Tensor]) -> dflash.Said:
    """Sliding layers are causal unless `dflash_config` says otherwise; the trainer's own flag is not read."""
    layer = config["transformer_layer_config"]
    others = sorted(set(layer.get("dflash_config", {})) - {"causal"})
    if others:
        yield f"dflash_config with {', '.join(others)}: it overrides the keys around it", "leave causal alone in it"
    flag, causal = config.get("sliding_window_non_causal", False), is_causal(layer)
    if causal_by_kind(layer) and flag == causal:
        kind = "causal" if causal else "bidirectional"
        found = f"sliding_window_non_causal {str(flag).lower()}, but the server's blocks are {kind}"
        told = json.dumps({"causal": not flag})
        yield found, f'write "dflash_config": {told} into transformer_layer_config'


FORMAT = CheckpointFormat(
    Keys=Keys,
    required_tensors=required_tensors,
    optional_tensors=dflash.optional_tensors,
    rules=(
        *dflash.BLOCK_RULES,
        FormatRule("block-size", _block_size),
        FormatRule("block-causality", _causality),
    ),
)
