"""Settings of DFlash2 in a reproduction (`algorithms: dflash2:`)."""

from typing import Self

from pydantic import Field, model_validator

from algorithms.dflash import config as dflash
from algorithms.work import Matrix, Pack, Sizes, Work

# The name that vLLM reports for this algorithm (contract 1.4).
ENGINE_METHOD = dflash.ENGINE_METHOD
ENGINE_RUNNER = "second"  # the first one has no candidate selector (0.1)


class Config(dflash.Config):
    """DFlash with convolutions along the block and a selector among the candidates of each position."""

    conv_kernel_size: int = Field(2, ge=1, description="use the number of rows that a convolution sees, 2 or a few")
    conv_group_size: int = Field(16, ge=1, description="use a divisor of the width: channels that share a kernel")
    selector_rank: int = Field(64, ge=1, description="use 1 or more: length of a token's vectors in the selector")
    selector_top_k: int = Field(16, ge=2, description="use 2 or more candidates a position")
    selector_weight: float = Field(1.0, ge=0, description="weigh the selector's loss by this, 0 leaves it untrained")

    @model_validator(mode="after")
    def _full_vocabulary(self) -> Self:
        if self.draft_vocab_size is not None:
            said = f"draft_vocab_size = {self.draft_vocab_size}: the server takes candidates for the verifier's own ids"
            raise ValueError(f"{said}. Fix: leave it out")
        return self

    @model_validator(mode="after")
    def _taps_fit_the_block(self) -> Self:
        rows = self.speculative_tokens + 1
        if self.conv_kernel_size > rows:
            said = f"conv_kernel_size = {self.conv_kernel_size}: a block has {rows} rows (speculative_tokens + 1)"
            raise ValueError(f"{said}. Fix: use {rows} or less")
        return self

    def work(self, sizes: Sizes, pack: Pack) -> Work:
        """DFlash's blocks, two convolutions a layer, and the selector's projection; its tables cost no product."""
        rows = min(self.max_anchors, pack.reply_tokens) * self.block_size
        kernels = 2 * self.conv_kernel_size * (sizes.hidden // self.conv_group_size)
        more = [Matrix(sizes.hidden, kernels, rows)] * (2 * self.layers)
        more.append(Matrix(sizes.hidden, self.selector_rank, rows))
        tables = 2 * sizes.vocabulary * self.selector_rank
        return self._block_work(sizes, pack, self.block_size, self.block_size - 1, more, tables)
