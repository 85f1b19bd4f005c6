"""Settings of DFlash in a reproduction (`algorithms: dflash:`), and those that all block drafts share."""

from typing import Literal, Self

from pydantic import Field, model_validator

from algorithms.settings import MaskedConfig

# The name that vLLM reports for this algorithm (contract 1.4).
ENGINE_METHOD = "dflash"


class BlockConfig(MaskedConfig):
    """A draft that learns on blocks behind randomly chosen reply tokens, their anchors."""

    max_anchors: int = Field(256, ge=1, description="use this many blocks of a pack at most")
    position_weights: Literal["decay", "dpace"] = Field("decay", description="use decay, or dpace (arXiv 2605.18810)")
    decay_gamma: float = Field(4.0, gt=0, description="decay: position k weighs exp(-k / decay_gamma)")
    dpace_alpha: float = Field(0.5, ge=0, le=1, description="dpace: smooth the draft's own probabilities by this")


class Config(BlockConfig):
    """One draft layer (or more) that writes a block of tokens at once."""

    block_size: int = Field(8, ge=2, le=33, description="use speculative_tokens + 1: the known token and the drafts")
    causal: bool = Field(False, description="true: a row sees the rows before it; false: all rows of its block")

    @model_validator(mode="after")
    def _served_as_trained(self) -> Self:
        most = self.block_size - 1
        if self.speculative_tokens > most or (self.speculative_tokens < most and not self.causal):
            kind = "causal" if self.causal else "bidirectional"
            said = f"a {kind} block of {self.block_size} rows drafts {'up to ' if self.causal else ''}{most}"
            fix = f"use {most}, or block_size {self.speculative_tokens + 1}"
            raise ValueError(f"speculative_tokens = {self.speculative_tokens}: {said}. Fix: {fix}")
        return self
