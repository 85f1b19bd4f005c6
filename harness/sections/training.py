"""Capture of replies and hidden states, and the optimisation of a draft."""

from typing import Literal, Self

from pydantic import Field, model_validator

from harness.sections.base import Seed, Strict

Tracker = Literal["tensorboard", "trackio"]


class Capture(Strict):
    """Replies and hidden states of the verifier, and how the training gets them.

    offline: replies and states in one pass, all of it stored. online: replies are stored, their states come from an
    engine that runs beside each training, and none is kept. hybrid: as online in the first epoch, then from the disk.
    """

    mode: Literal["offline", "online", "hybrid"] = Field("offline", description="use offline, online or hybrid")
    aux_layers: list[int] = Field(
        min_length=1, description="list ascending layer ids between 0 and the number of layers"
    )
    store_dtype: Literal["int8"] | None = Field(
        None, description="use int8 for half the disk, or leave it out to keep states as the verifier gives them"
    )
    engine: Literal["in_process", "server"] = Field(
        "in_process", description="use in_process, or server for vLLM's own server and its hidden-state files"
    )
    shard_rows: int = Field(ge=1, description="use 1 or more rows in a shard")
    jobs: int = Field(1, ge=1, description="cut the capture into this many jobs, each on a machine of its own")
    max_num_seqs: int = Field(ge=1, description="use 1 or more replies at once")
    preflight_rows: int = Field(8, ge=1, description="check this many replies against the verifier's own logits")

    @property
    def live(self) -> bool:
        """Whether states come from an engine that runs beside the training."""
        return self.mode != "offline"

    @model_validator(mode="after")
    def _nothing_to_store(self) -> Self:
        if self.mode == "online" and self.store_dtype:
            raise ValueError(
                f"mode = online keeps no states, so store_dtype = {self.store_dtype} has no effect. Fix: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _layers_ascend(self) -> Self:
        if any(a >= b for a, b in zip(self.aux_layers, self.aux_layers[1:], strict=False)) or self.aux_layers[0] < 0:
            raise ValueError(f"aux_layers = {self.aux_layers}: layer ids must be ascending, distinct and not negative")
        return self


class Training(Strict):
    """The optimisation, the same knobs for every algorithm."""

    seed: Seed
    epochs: int = Field(ge=1, description="use 1 or more passes over the data")
    tokens_per_step: int = Field(ge=16, description="pack this many tokens into an optimiser step")
    learning_rate: float = Field(gt=0, description="use a positive number such as 1e-3")
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", description="use cosine, linear or constant")
    warmup_share: float = Field(0.05, ge=0, lt=1, description="use a share of the steps below 1")
    weight_decay: float = Field(0.0, ge=0, description="use 0 or a small positive number")
    optimizer: Literal["adamw", "muon"] = Field("adamw", description="use adamw or muon")
    clip_norm: float = Field(1.0, gt=0, description="use a positive number")
    validation_share: float = Field(0.05, gt=0, lt=0.5, description="use a share of the rows below 0.5")
    checkpoint_minutes: float = Field(1.0, gt=0, description="save the training state this often")
    compute_dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="use bfloat16 or float32")
    gradient_checkpointing: bool = Field(
        False, description="true: compute activations again in the backward pass, for less memory and more time"
    )
    compile: bool = Field(False, description="true: compiled layers and flex attention, on a GPU only")
    processes: int = Field(1, ge=1, description="train with this many processes, one a GPU; results stay the same")
    keep: Literal["best", "last"] = Field("last", description="use the best epoch's weights (best) or the last one's")
    log_to: list[Tracker] = Field(default_factory=list, description="list tensorboard or trackio, or leave it out")
