"""Settings of EAGLE-3 in a reproduction (`algorithms: eagle3:`)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from algorithms.settings import DraftConfig
from algorithms.work import Pack, Sizes, Work

# The name that vLLM reports for this algorithm (contract 1.4).
ENGINE_METHOD = "eagle3"


class Config(DraftConfig):
    """One draft layer (or more) that reads the verifier's states and feeds its own state back."""

    ttt_steps: int = Field(3, ge=1, le=16, description="unroll this many drafting steps in training")
    architecture: Literal["llama", "qwen3"] = Field("llama", description="use llama or qwen3 (normed heads)")
    norm_before_residual: bool = Field(True, description="true: the residual starts from the normed state")
    norm_before_fc: bool = Field(False, description="true: one norm over the joined verifier states")
    fc_norm: bool = Field(False, description="true: a norm on each verifier state")
    norm_output: bool = Field(False, description="true: feed the normed state back")
    step_loss_decay: float = Field(1.0, gt=0, le=1, description="weigh drafting step k by this to the power k")

    @model_validator(mode="after")
    def _one_feature_norm(self) -> Self:
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("fc_norm = true: the server would apply norm_before_fc as well. Fix: use one of them")
        return self

    def work(self, sizes: Sizes, pack: Pack) -> Work:
        """Every reply token goes through the draft once for each unrolled step."""
        return self._feedback_work(sizes, pack, pack.reply_tokens * self.ttt_steps)
