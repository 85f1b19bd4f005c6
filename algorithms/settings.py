"""Settings that drafts share (`algorithms: <name>:` in a reproduction), free of PyTorch: read in no time."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from algorithms.work import Head, Matrix, Pack, Sizes, Work, layer_matrices

LossName = Literal["kl_div", "reverse_kl", "jsd", "ce", "tv", "nla", "lk_hybrid"]


SPECULATIVE_TOKENS_MAX = 32  # in a verify step; nobody's draft is trained for more


class DraftConfig(BaseModel):
    """What every draft has: its size, its vocabulary, what it is trained on."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    speculative_tokens: int = Field(
        ge=1, le=SPECULATIVE_TOKENS_MAX, description=f"use 1 to {SPECULATIVE_TOKENS_MAX} tokens per verify step"
    )
    draft_vocab_size: int | None = Field(None, ge=1, description="use the verifier's vocabulary (leave out) or less")
    layers: int = Field(1, ge=1, description="use 1 or more draft layers")
    intermediate_size: int | None = Field(None, ge=1, description="leave out for the verifier's MLP width")
    sliding_window: int | None = Field(None, ge=1, description="leave out for full attention")
    loss: LossName | Annotated[dict[LossName, PositiveFloat], Field(min_length=1)] = Field(
        "kl_div", description="use one of kl_div, reverse_kl, jsd, ce, tv, nla, lk_hybrid, or a weight for several"
    )
    train_head: bool = Field(False, description="true: train the output head, false: keep the verifier's rows")
    init_from: str | None = Field(
        None, pattern=r"^[^/~]", description="give the relative folder of a checkpoint to go on from, or leave it out"
    )

    @property
    def loss_weights(self) -> dict[str, float]:
        """The loss as a weighted sum: weight by name."""
        return {self.loss: 1.0} if isinstance(self.loss, str) else dict(self.loss)

    def work(self, sizes: Sizes, pack: Pack) -> Work:
        """What one training step on `pack` computes."""
        raise NotImplementedError

    def _fusion(self, sizes: Sizes, pack: Pack) -> Matrix:
        """The matrix that makes one state of the verifier's states."""
        return Matrix(sizes.aux_layers * sizes.hidden, sizes.hidden, pack.tokens, reads_input=True)

    def _head(self, sizes: Sizes, rows: float, targets: float) -> Head:
        vocabulary = self.draft_vocab_size or sizes.vocabulary
        return Head(sizes.hidden, vocabulary, rows, min(rows, targets), self.train_head)

    def _seen(self, pack: Pack) -> float:
        """Tokens that a row's attention computes: those that a mask hides are computed too."""
        return min(pack.document_tokens, self.sliding_window or pack.document_tokens)

    def _feedback_work(self, sizes: Sizes, pack: Pack, rows: float, tables: float = 0.0) -> Work:
        """A draft that reads [embedding; state]: all tokens give keys, the last layer's `rows` go further."""
        inner = self.intermediate_size or sizes.intermediate
        matrices, query_rows = [self._fusion(sizes, pack)], 0.0
        for layer in range(self.layers):
            last = layer == self.layers - 1
            here = rows if last else rows - pack.reply_tokens + pack.tokens
            inputs = sizes.hidden * (2 if layer == 0 else 1)
            matrices += layer_matrices(sizes, inner, inputs, rows - pack.reply_tokens + pack.tokens, here)
            query_rows += here
        attention = (query_rows, self._seen(pack), sizes.query)
        return Work.of(matrices, attention, self._head(sizes, rows, pack.reply_tokens), tables)


class MaskedConfig(DraftConfig):
    """A draft that writes its tokens side by side: a mask token stands where they are not known yet."""

    mask_token_id: int = Field(ge=0, description="give a token of the verifier's that never stands in its text")
