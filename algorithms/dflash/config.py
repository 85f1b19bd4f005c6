"""Settings of DFlash in a reproduction (`algorithms: dflash:`), and those that all block drafts share."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from algorithms.settings import MaskedConfig
from algorithms.work import Matrix, Pack, Sizes, Work, layer_matrices

# The name that vLLM reports for this algorithm (contract 1.4).
ENGINE_METHOD = "dflash"


class BlockConfig(MaskedConfig):
    """A draft that learns on blocks behind randomly chosen reply tokens, their anchors."""

    max_anchors: int = Field(256, ge=1, description="use this many blocks of a pack at most")
    position_weights: Literal["decay", "dpace"] = Field("decay", description="use decay, or dpace (arXiv 2605.18810)")
    decay_gamma: float = Field(4.0, gt=0, description="decay: position k weighs exp(-k / decay_gamma)")
    dpace_alpha: float = Field(0.5, ge=0, le=1, description="dpace: smooth the draft's own probabilities by this")

    def _block_work(
        self, sizes: Sizes, pack: Pack, block: int, scored: int, more: Sequence[Matrix] = (), tables: float = 0.0
    ) -> Work:
        """All tokens give keys; the rows of the blocks go through every layer.

        Args:
            block: rows of a block. scored: those that are held against the verifier.
            more: matrices beside the layers. tables: numbers in tables of token vectors.
        """
        anchors = min(self.max_anchors, pack.reply_tokens)
        rows, inner = anchors * block, self.intermediate_size or sizes.intermediate
        layers = [
            matrix
            for _ in range(self.layers)
            for matrix in layer_matrices(sizes, inner, sizes.hidden, pack.tokens + rows, rows)
        ]
        attention = (rows * self.layers, self._seen(pack), sizes.query)
        head = self._head(sizes, anchors * scored, pack.reply_tokens)
        return Work.of([self._fusion(sizes, pack), *layers, *more], attention, head, tables)


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

    def work(self, sizes: Sizes, pack: Pack) -> Work:
        """Blocks at the anchors; the known token's row is not scored."""
        return self._block_work(sizes, pack, self.block_size, self.block_size - 1)
