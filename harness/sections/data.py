"""Prompts, and how the verifier replies to them."""

from typing import Literal

from pydantic import Field

from harness.sections.base import Strict

SourceName = Literal["word_problems", "instructions", "gsm8k", "mt_bench"]


class PromptSource(Strict):
    """Rows from one prompt source. The split (train or held out) follows from where the source is listed."""

    source: SourceName = Field(description="use word_problems, instructions, gsm8k or mt_bench")
    rows: int = Field(ge=1, description="use 1 or more rows")
    optional: bool = Field(False, description="true: a source that cannot be had is reported as not run, not an error")


class Reply(Strict):
    """How the verifier writes the training replies."""

    max_new_tokens: int = Field(ge=1, description="use 1 or more tokens")
    temperature: float = Field(0.0, ge=0.0, description="use 0 for greedy replies")


class Data(Strict):
    """Prompts and replies."""

    seed: int = Field(ge=0, description="use a whole number from 0")
    folder: str | None = Field(None, description="give the folder that holds gsm8k/ and mt_bench/, or leave it out")
    train: list[PromptSource] = Field(min_length=1, description="list at least one source")
    heldout: list[PromptSource] = Field(min_length=1, description="list at least one source")
    system_prompt: str | None = Field(None, description="give a system turn, or leave it out for the template's own")
    reply: Reply
    min_supervised_tokens: int = Field(4, ge=1, description="drop a reply with fewer tokens than this")
    dropped_share_max: float = Field(0.05, ge=0, le=1, description="fail when a larger share of rows is dropped")
