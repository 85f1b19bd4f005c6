"""Settings of EAGLE-3 in a reproduction (`algorithms: eagle3:`)."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

# The name that vLLM reports for this algorithm (contract 1.4).
ENGINE_METHOD = "eagle3"


class Config(BaseModel):
    """One draft layer (or more) that reads the verifier's states and feeds its own state back."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    speculative_tokens: int = Field(ge=1, le=16, description="use 1 to 16 tokens per verify step")
    ttt_steps: int = Field(3, ge=1, le=16, description="unroll this many drafting steps in training")
    draft_vocab_size: int | None = Field(None, ge=1, description="use the verifier's vocabulary (leave out) or less")
    architecture: Literal["llama", "qwen3"] = Field("llama", description="use llama or qwen3 (normed heads)")
    layers: int = Field(1, ge=1, description="use 1 or more draft layers")
    intermediate_size: int | None = Field(None, ge=1, description="leave out for the verifier's MLP width")
    sliding_window: int | None = Field(None, ge=1, description="leave out for full attention")
    norm_before_residual: bool = Field(True, description="true: the residual starts from the normed state")
    norm_before_fc: bool = Field(False, description="true: one norm over the joined verifier states")
    fc_norm: bool = Field(False, description="true: a norm on each verifier state")
    norm_output: bool = Field(False, description="true: feed the normed state back")
    step_loss_decay: float = Field(1.0, gt=0, le=1, description="weigh drafting step k by this to the power k")
    train_head: bool = Field(False, description="true: train the output head, false: keep the verifier's rows")
