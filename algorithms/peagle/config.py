"""Settings of P-EAGLE in a reproduction (`algorithms: peagle:`)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from algorithms.settings import MaskedConfig
from algorithms.work import Pack, Sizes, Work

# The name that vLLM reports for this algorithm (contract 1.4): it serves it as EAGLE-3 that drafts in parallel.
ENGINE_METHOD = "eagle3"


class Config(MaskedConfig):
    """One draft layer (or more) that reads the verifier's states and then masks, side by side.

    EAGLE-3's `fc_norm` and `norm_output` are no settings here: the server has no place for the first (contract 9,
    trap 6), and no state is fed back.
    """

    architecture: Literal["llama", "qwen3"] = Field("llama", description="use llama or qwen3 (normed heads)")
    norm_before_residual: bool = Field(False, description="true: the residual starts from the normed state")
    norm_before_fc: bool = Field(False, description="true: one norm over the joined verifier states")
    train_embedding: bool = Field(False, description="true: train a table of its own, false: read the verifier's")
    num_depths: int = Field(8, ge=1, le=32, description="train this many tokens behind one another")
    max_anchors: int = Field(512, ge=1, description="draw this many positions of a pack at most to draft deeper from")
    sample_ratio: float = Field(0.7, gt=0, le=1, description="keep this share of the positions from depth to depth")
    sample_ratio_min: float = Field(0.2, ge=0, le=1, description="keep at least this share of all at every depth")

    @model_validator(mode="after")
    def _drafts_what_it_learned(self) -> Self:
        if self.speculative_tokens > self.num_depths:
            said = f"only {self.num_depths} are trained (num_depths)"
            fix = f"use at most {self.num_depths}, or more num_depths"
            raise ValueError(f"speculative_tokens = {self.speculative_tokens}: {said}. Fix: {fix}")
        return self

    def work(self, sizes: Sizes, pack: Pack) -> Work:
        """Every reply token at depth 0, then the share of the drawn ones that each depth keeps."""
        drawn = min(self.max_anchors, pack.reply_tokens)
        deeper = sum(max(self.sample_ratio**depth, self.sample_ratio_min) for depth in range(1, self.num_depths))
        tables = sizes.vocabulary * sizes.hidden if self.train_embedding else 0
        return self._feedback_work(sizes, pack, pack.reply_tokens + drawn * deeper, tables)
