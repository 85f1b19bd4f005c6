"""The server, the drafting that needs no checkpoint, and the verifier in fewer bits."""

from typing import Literal, Self

from pydantic import Field, model_validator

from harness.sections.base import Strict


class Serve(Strict):
    """The server, the same for every variant."""

    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="use bfloat16 or float32")
    max_model_len: int = Field(ge=16, description="use the longest prompt plus reply, in tokens")
    max_num_seqs: int = Field(ge=1, description="use 1 or more requests at once")
    tensor_parallel_size: int = Field(1, ge=1, description="spread the verifier over this many GPUs")
    kv_cache_gb: float = Field(1.0, gt=0, description="give the KV cache of the CPU backend in GB")
    chat_template: Literal["server", "client"] = Field(
        "server", description="use server, or client where the engine has a rendering of its own (gpt-oss)"
    )
    port: int | None = Field(None, ge=1024, le=65535, description="leave it out for any free port")
    ready_timeout_s: float = Field(300.0, gt=0, description="wait at most this long for the server")


class Ngram(Strict):
    """Prompt look-up drafting without a draft model."""

    speculative_tokens: int = Field(ge=1, le=16, description="use 1 to 16 tokens per verify step")
    lookup_min: int = Field(2, ge=1, description="match at least this many tokens")
    lookup_max: int = Field(4, ge=1, description="match at most this many tokens")

    @model_validator(mode="after")
    def _range_is_one(self) -> Self:
        if self.lookup_min > self.lookup_max:
            raise ValueError(f"lookup_min = {self.lookup_min} is above lookup_max = {self.lookup_max}")
        return self


class Suffix(Strict):
    """Suffix-tree look-up in prompt and reply, with drafts as long as the match; its package may be absent."""

    speculative_tokens: int = Field(ge=1, le=32, description="use 1 to 32 tokens per verify step at most")
    tokens_per_matched: float = Field(1.0, gt=0, description="draft at most this many tokens for each that matched")
    min_probability: float = Field(0.1, ge=0, le=1, description="draft only what followed at least this often")


class Baselines(Strict):
    """Drafting without a checkpoint to compare with, beside no drafting at all, which is always measured."""

    ngram: Ngram | None = Field(None, description="give its section, or leave it out")
    suffix: Suffix | None = Field(None, description="give its section, or leave it out")


class Quantised(Strict):
    """The verifier again with 8-bit weights and activations, alone and with drafts made for the original."""

    scheme: Literal["int8", "fp8"] = Field(description="use int8 (CPU and GPU) or fp8 (GPU)")
    algorithms: list[str] = Field(default_factory=list, description="list algorithms of this reproduction")
    near_tie_nats: float = Field(1.5, gt=0, description="use nats above 0; a smaller top-2 margin is a near tie")
