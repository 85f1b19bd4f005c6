"""What is known of a run before anything of it is there: sizes of the verifier, lengths, the machine it is meant for.

No step is run with it; `harness.plan` and the resources of the rules follow from it.
"""

from collections.abc import Iterator
from typing import Any, Self

from pydantic import Field, model_validator

from harness.machines import KNOWN
from harness.sections.base import Strict


class VerifierSize(Strict):
    """The verifier as its published config.json and index say."""

    layers: int = Field(ge=1, description="give num_hidden_layers")
    hidden_size: int = Field(ge=1, description="give hidden_size")
    intermediate_size: int = Field(ge=1, description="give intermediate_size, the MLP width that drafts take over")
    attention_heads: int = Field(ge=1, description="give num_attention_heads")
    kv_heads: int = Field(ge=1, description="give num_key_value_heads")
    head_dim: int = Field(ge=1, description="give head_dim")
    vocab_size: int = Field(ge=1, description="give vocab_size")
    parameters: float = Field(gt=0, description="give the number of parameters, for example 8.19e9")
    active_parameters: float | None = Field(None, gt=0, description="of an MoE: those that one token passes")
    weight_bytes: float = Field(gt=0, description="give the size of the weight files in bytes, for example 16.4e9")
    kv_bytes_per_token: float | None = Field(None, gt=0, description="leave out, but where keys are kept compressed")

    @model_validator(mode="after")
    def _active_is_a_part(self) -> Self:
        if self.active_parameters is not None and self.active_parameters > self.parameters:
            raise ValueError(f"active_parameters = {self.active_parameters} is above parameters = {self.parameters}")
        return self

    def differing(self, config: dict[str, Any]) -> Iterator[str]:
        """`name = ours, not theirs` for every size that the text part of a config.json contradicts."""
        names = {
            "layers": "num_hidden_layers", "hidden_size": "hidden_size", "intermediate_size": "intermediate_size",
            "attention_heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "vocab_size": "vocab_size",
        }  # fmt: skip
        for ours, theirs in names.items():
            if config.get(theirs) not in (None, getattr(self, ours)):
                yield f"{ours} = {getattr(self, ours)}, not {config[theirs]}"

    @property
    def active(self) -> float:
        """Parameters that one token passes."""
        return self.active_parameters or self.parameters

    @property
    def cache_bytes_per_token(self) -> float:
        """Keys and values of one token in bfloat16."""
        return self.kv_bytes_per_token or 2 * 2 * self.layers * self.kv_heads * self.head_dim


class Plan(Strict):
    """What the plan is computed from, beside the settings of the run itself."""

    machine: str = Field(description=f"use one of {', '.join(KNOWN)}")
    verifier: VerifierSize
    prompt_tokens: float = Field(gt=0, description="give the mean length of a training prompt, template included")
    reply_tokens: float = Field(gt=0, description="give the mean length of a training reply")

    @model_validator(mode="after")
    def _machine_is_known(self) -> Self:
        if self.machine not in KNOWN:
            raise ValueError(f"machine = {self.machine!r}: not known. Fix: use one of {', '.join(KNOWN)}")
        return self
