"""What the server reads of a P-EAGLE checkpoint: keys, tensor names and shapes, traps (contract 1.3, 1.4, 2.2, 9).

Named by `ALGORITHM.format`; used by the exporter's check and by the linter.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from algorithms.contract import CheckpointFormat, FormatRule
from algorithms.eagle3 import format as eagle3
from algorithms.shapes import Shapes


class Keys(BaseModel):
    """Top-level keys of config.json. Those without a default mean something else to the server when left out."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    draft_vocab_size: int | None = Field(description="write the number of draft tokens, or null for all")
    norm_before_residual: bool = Field(description="write it: the server takes false where it is absent")
    eagle_aux_hidden_state_layer_ids: list[int] = Field(
        min_length=1, description="write the trained layer ids: the server guesses (2, n/2, n-3) where they are absent"
    )
    mask_token_id: int = Field(ge=0, description="write the token that masks were trained with")
    norm_before_fc: bool = Field(False, description="use true or false")
    target_hidden_size: int | None = Field(None, ge=1, description="write the verifier's width")
    # The server does not read these two: other trainers write them.
    fc_norm: bool = Field(False, description="use false: the server has no norm on each verifier state here")
    norm_output: bool = Field(False, description="leave it out: no state is fed back")


def required_tensors(config: dict[str, Any]) -> Shapes:
    """Shape by name of every tensor that the server would otherwise leave uninitialised, or stop at."""
    shapes = eagle3.required_tensors(config | {"fc_norm": False})
    return shapes | {"mask_hidden": (1, 1, shapes["fc.weight"][1])}


def _feature_norms(config: dict[str, Any], _: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    """The server has no place for norms of single states here."""
    if config.get("fc_norm"):
        yield "fc_norm true: the server has no such norm in P-EAGLE", "train without it, or with norm_before_fc"


def _mask_token(config: dict[str, Any], _: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    """The mask is one of the verifier's tokens."""
    mask, vocabulary = config["mask_token_id"], config["transformer_layer_config"]["vocab_size"]
    if mask >= vocabulary:
        yield f"mask_token_id {mask} of {vocabulary} tokens", "write the token that masks were trained with"


FORMAT = CheckpointFormat(
    Keys=Keys,
    required_tensors=required_tensors,
    optional_tensors=eagle3.optional_tensors,
    rules=(
        *eagle3.NETWORK_RULES,
        FormatRule("feature-norms", _feature_norms),
        FormatRule("mask-token", _mask_token),
    ),
)
