"""Settings of DSpark in a reproduction (`algorithms: dspark:`)."""

from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from algorithms.dflash.config import BlockConfig
from algorithms.work import Matrix, Pack, Sizes, Work

# The name that vLLM reports for this algorithm (contract 1.4).
ENGINE_METHOD = "dspark"
ENGINE_RUNNER = "second"  # the first one has no Markov head (0.1)


class Config(BlockConfig):
    """A block draft with a table of token pairs and a guess of its own acceptance."""

    block_size: int = Field(8, ge=1, le=33, description="use speculative_tokens, one more without sample_from_anchor")
    sample_from_anchor: bool = Field(True, description="true: all rows draft, false: the known token's row does not")
    causal: bool | None = Field(
        None, description="true: a row sees the rows before it; false: all; left out: true with a sliding window"
    )
    markov_rank: int = Field(64, ge=1, description="use 1 or more; a draft without a Markov head is a dflash")
    markov_head_type: Literal["vanilla"] = Field("vanilla", description="use vanilla: the server computes no other")
    confidence_head: bool = Field(True, description="true: learn to guess each draft's chance of acceptance")
    confidence_head_with_markov: bool = Field(True, description="true: the guess reads the previous token as well")
    confidence_weight: float = Field(1.0, gt=0, description="weight of the guess's cross-entropy in the loss")

    @property
    def blocks_are_causal(self) -> bool:
        """Whether a row sees only rows up to itself: what the server does with these layers, or is told to."""
        return self.sliding_window is not None if self.causal is None else self.causal

    @property
    def drafts_of_block(self) -> int:
        """Rows of a trained block that draft a token."""
        return self.block_size - (0 if self.sample_from_anchor else 1)

    @model_validator(mode="after")
    def _served_as_trained(self) -> Self:
        most, tokens = self.drafts_of_block, self.speculative_tokens
        if tokens > most or (tokens < most and not self.blocks_are_causal):
            kind = "causal" if self.blocks_are_causal else "bidirectional"
            rows = f"{self.block_size} rows with sample_from_anchor {str(self.sample_from_anchor).lower()}"
            said = f"a {kind} block of {rows} drafts {'up to ' if self.blocks_are_causal else ''}{most}"
            fix = f"use block_size {tokens + self.block_size - most}" + (f", or {most}" if most else "")
            raise ValueError(f"speculative_tokens = {tokens}: {said}. Fix: {fix}")
        return self

    def work(self, sizes: Sizes, pack: Pack) -> Work:
        """Blocks at the anchors; the Markov head adds its own product to every scored row's logits."""
        vocabulary = self.draft_vocab_size or sizes.vocabulary
        scored = min(self.max_anchors, pack.reply_tokens) * self.drafts_of_block
        markov = Matrix(self.markov_rank, vocabulary, scored)
        plain = self._block_work(
            sizes,
            pack,
            self.block_size,
            self.drafts_of_block,
            tables=(sizes.vocabulary + vocabulary) * self.markov_rank,
        )
        return replace(plain, head_flop=plain.head_flop + markov.flop)
