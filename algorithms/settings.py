"""Settings that drafts share (`algorithms: <name>:` in a reproduction), free of PyTorch: read in no time."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

LossName = Literal["kl_div", "reverse_kl", "jsd", "ce", "tv", "nla", "lk_hybrid"]


class DraftConfig(BaseModel):
    """What every draft has: its size, its vocabulary, what it is trained on."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    speculative_tokens: int = Field(ge=1, le=32, description="use 1 to 32 tokens per verify step")
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


class MaskedConfig(DraftConfig):
    """A draft that writes its tokens side by side: a mask token stands where they are not known yet."""

    mask_token_id: int = Field(ge=0, description="give a token of the verifier's that never stands in its text")
