"""Prompts, and how the verifier replies to them."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from harness.sections.base import Seed, Strict

SourceName = Literal[
    "word_problems", "instructions", "image_questions", "gsm8k", "gsm8k_5shot", "mt_bench", "repeat_word"
]

ROWS_MAX = 100_000_000  # beyond any set: a slip of the hand


class Source(Strict):
    """What every prompt source has. The split (train or held out) follows from where the source is listed."""

    rows: int = Field(ge=1, le=ROWS_MAX, description=f"use 1 to {ROWS_MAX:,} rows")
    optional: bool = Field(False, description="true: a source that cannot be had is reported as not run, not an error")


class PromptSource(Source):
    """Rows from a source that the project knows."""

    source: SourceName = Field(description=f"use {', '.join(get_args(SourceName))} or chat")

    @property
    def name(self) -> str:
        """What rows, results and gates call it."""
        return self.source


class ChatSource(Source):
    """Conversations of others, from the hub at a pinned commit or from `data.folder`; the verifier answers anew.

    A row holds `messages` (role, content) or `conversations` (from, value), as chat sets do.
    """

    source: Literal["chat"]
    name: str = Field(pattern=r"^[a-z0-9_]+$", description="give the set a short name: small letters, digits, _")
    id: str = Field(description="give the hub id, for example HuggingFaceH4/ultrachat_200k")
    revision: str = Field(pattern=r"^[0-9a-f]{40}$", description="give the 40 hex digits of the commit")
    split: str = Field("train", description="give the set's own name of the split, for example train_sft")
    file: str | None = Field(None, description="name the one file to read, or leave it out")
    turns: int = Field(1, ge=1, description="keep at most this many user turns; replies between them are the set's own")


class LongSource(Source):
    """Word problems behind many solved ones: prompts longer than those that the draft learnt from."""

    source: Literal["long_prompts"]
    examples: int = Field(ge=2, le=200, description="put this many solved problems first, about 70 tokens each")

    @property
    def name(self) -> str:
        """What rows, results and gates call it."""
        return self.source


AnySource = Annotated[PromptSource | ChatSource | LongSource, Field(discriminator="source")]


class Reply(Strict):
    """How the verifier writes the training replies."""

    max_new_tokens: int = Field(ge=1, description="use 1 or more tokens")
    temperature: float = Field(0.0, ge=0.0, description="use 0 for greedy replies")


class Data(Strict):
    """Prompts and replies."""

    seed: Seed
    folder: str | None = Field(
        None, description="give the folder that holds gsm8k/, mt_bench/ and chat sets by name, or leave it out"
    )
    train: list[AnySource] = Field(min_length=1, description="list at least one source")
    heldout: list[AnySource] = Field(min_length=1, description="list at least one source")
    system_prompt: str | None = Field(None, description="give a system turn, or leave it out for the template's own")
    reply: Reply
    min_supervised_tokens: int = Field(4, ge=1, description="drop a reply with fewer tokens than this")
    dropped_share_max: float = Field(0.05, ge=0, le=1, description="fail when a larger share of rows is dropped")
