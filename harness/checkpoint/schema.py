"""Typed model of a draft's config.json in the speculators format, as far as it is the same for every algorithm.

Read by the lint rules. Keys of one algorithm are typed by that algorithm (`CheckpointFormat.Keys`).
"""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.sections.base import Strict

# Written by other tools, read by no server: allowed, without meaning.
IGNORED_KEYS = frozenset(
    {
        "architectures",
        "dtype",
        "torch_dtype",
        "speculators_version",
        "transformers_version",
        "embed_requires_grad",
        "has_no_defaults_at_init",
        "tie_word_embeddings",
    }
)
# Known to be wrong; each has a rule of its own.
FORBIDDEN_KEYS = frozenset({"model_type", "auto_map"})


class ProposalMethod(BaseModel):
    """How many tokens are drafted. The server reads the first entry only."""

    model_config = ConfigDict(extra="allow", strict=True)

    proposal_type: str = Field(description="use greedy")
    speculative_tokens: int = Field(ge=1, description="write the number of tokens to draft, 1 or more")


class VerifierReference(BaseModel):
    """The model that the server loads and takes the tokenizer from."""

    model_config = ConfigDict(extra="allow", strict=True)

    name_or_path: str = Field(min_length=1, description="write the verifier's hub id or relative folder")
    architectures: list[str] = Field(default_factory=list, description="list the verifier's architectures")


class SpeculatorsSection(Strict):
    """`speculators_config`."""

    algorithm: str = Field(description="write the algorithm's name")
    proposal_methods: list[ProposalMethod] = Field(min_length=1, description="write at least one method")
    default_proposal_method: str = Field(description="name one of proposal_methods")
    verifier: VerifierReference = Field(description="write {name_or_path, architectures}")

    @model_validator(mode="after")
    def _default_is_listed(self) -> Self:
        known = [method.proposal_type for method in self.proposal_methods]
        if self.default_proposal_method not in known:
            raise ValueError(f"default_proposal_method {self.default_proposal_method!r} is not one of {known}")
        return self


class TransformerLayer(BaseModel):
    """`transformer_layer_config`: it becomes the server's draft config, and what is left out a default of its own."""

    model_config = ConfigDict(extra="allow", strict=True)

    model_type: str = Field(description="write the kind of decoder layer, such as llama")
    hidden_size: int = Field(ge=1, description="write the draft's width")
    intermediate_size: int = Field(ge=1, description="write the width inside the MLP")
    num_hidden_layers: int = Field(ge=1, description="write the number of draft layers")
    num_attention_heads: int = Field(ge=1, description="write the number of query heads")
    num_key_value_heads: int = Field(ge=1, description="write the number of key and value heads")
    head_dim: int = Field(ge=2, description="write the head size: it need not be hidden_size / heads")
    vocab_size: int = Field(ge=1, description="write the verifier's vocabulary, padding included")
    max_position_embeddings: int = Field(ge=1, description="write the verifier's value")
    rms_norm_eps: float = Field(gt=0, description="write the value used in training")
    hidden_act: str = Field(pattern="^silu$", description="use silu: the server has no other")
    rope_parameters: dict[str, Any] | None = Field(None, description="write the verifier's rope_parameters")
    layer_types: list[str] | None = Field(None, description="write one for each draft layer")
    sliding_window: int | None = Field(None, ge=1, description="write the width in tokens, or null")
    attention_bias: bool = Field(False, description="use true or false")
    mlp_bias: bool = Field(False, description="use true or false")
    num_aux_hidden_states: int | None = Field(None, ge=1, description="write the number of layer ids")


class DraftConfig(BaseModel):
    """config.json without the algorithm's own keys."""

    model_config = ConfigDict(extra="ignore", strict=True)

    speculators_model_type: str = Field(description="write the algorithm's name")
    speculators_config: SpeculatorsSection = Field(description="write algorithm, proposal_methods, verifier")
    transformer_layer_config: TransformerLayer = Field(description="write the draft layers' sizes")


def algorithm_keys(config: dict[str, Any]) -> dict[str, Any]:
    """The top-level keys that belong to one algorithm."""
    others = {*DraftConfig.model_fields, *IGNORED_KEYS, *FORBIDDEN_KEYS}
    return {key: value for key, value in config.items() if key not in others}
