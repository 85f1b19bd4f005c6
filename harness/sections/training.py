"""Capture of replies and hidden states, and the optimisation of a draft."""

from typing import Literal, Self

from pydantic import Field, model_validator

from harness.sections.base import Strict


class Capture(Strict):
    """Replies and hidden states in one pass."""

    mode: Literal["offline"] = Field("offline", description="use offline")
    aux_layers: list[int] = Field(
        min_length=1, description="list ascending layer ids between 0 and the number of layers"
    )
    shard_rows: int = Field(ge=1, description="use 1 or more rows in a shard")
    max_num_seqs: int = Field(ge=1, description="use 1 or more replies at once")
    preflight_rows: int = Field(8, ge=1, description="check this many replies against the verifier's own logits")

    @model_validator(mode="after")
    def _layers_ascend(self) -> Self:
        if any(a >= b for a, b in zip(self.aux_layers, self.aux_layers[1:], strict=False)) or self.aux_layers[0] < 0:
            raise ValueError(f"aux_layers = {self.aux_layers}: layer ids must be ascending, distinct and not negative")
        return self


class Training(Strict):
    """The optimisation, the same knobs for every algorithm."""

    seed: int = Field(ge=0, description="use a whole number from 0")
    epochs: int = Field(ge=1, description="use 1 or more passes over the data")
    tokens_per_step: int = Field(ge=16, description="pack this many tokens into an optimiser step")
    learning_rate: float = Field(gt=0, description="use a positive number such as 1e-3")
    warmup_share: float = Field(0.05, ge=0, lt=1, description="use a share of the steps below 1")
    weight_decay: float = Field(0.0, ge=0, description="use 0 or a small positive number")
    optimizer: Literal["adamw", "muon"] = Field("adamw", description="use adamw or muon")
    clip_norm: float = Field(1.0, gt=0, description="use a positive number")
    validation_share: float = Field(0.05, gt=0, lt=0.5, description="use a share of the rows below 0.5")
    checkpoint_minutes: float = Field(1.0, gt=0, description="save the training state this often")
    compute_dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="use bfloat16 or float32")
