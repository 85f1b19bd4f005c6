"""The server and the drafting that needs no checkpoint."""

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
