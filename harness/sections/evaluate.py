"""What is measured on every variant, and what a run must reach."""

from typing import Literal

from pydantic import Field, PositiveFloat

from harness.sections.base import Strict
from harness.sections.data import SourceName


class Acceptance(Strict):
    """Greedy replies to the held-out prompts: acceptance and output match come from them."""

    max_new_tokens: int = Field(ge=1, description="use 1 or more tokens")
    concurrency: int = Field(ge=1, description="use 1 or more requests at once")


class Accuracy(Strict):
    """Scores of lm-eval tasks against the running server."""

    tasks: list[Literal["word_problems", "gsm8k"]] = Field(min_length=1, description="use word_problems or gsm8k")
    limit: int = Field(ge=1, description="score at most this many problems of each task")
    max_new_tokens: int = Field(ge=1, description="use 1 or more tokens")
    concurrency: int = Field(ge=1, description="use 1 or more requests at once")
    error_share_max: float = Field(0.01, ge=0, le=1, description="a score with more failed replies is invalid")


class Latency(Strict):
    """GuideLLM's closed-loop load."""

    benchmark: SourceName = Field(description="name a held-out source")
    concurrency: list[int] = Field(min_length=1, description="list the numbers of requests at once")
    requests: int = Field(ge=1, description="measure this many requests at each concurrency")
    warmup_requests: int = Field(2, ge=1, description="send at least 1 before the clock starts")
    max_new_tokens: int = Field(ge=1, description="use 1 or more tokens")
    failure_share_max: float = Field(0.01, ge=0, le=1, description="a figure with more failed requests is invalid")


class Evaluate(Strict):
    """What is measured on every variant."""

    bootstrap_resamples: int = Field(2000, ge=100, description="use 100 or more")
    seed: int = Field(0, ge=0, description="use a whole number from 0")
    near_tie_nats: float = Field(0.5, gt=0, description="a difference at a smaller top-2 margin is benign")
    parity_margin_tokens: float = Field(0.05, ge=0, description="allow this much between predicted and served length")
    acceptance: Acceptance
    accuracy: Accuracy
    latency: Latency


class Gates(Strict):
    """What the run must reach; a missed gate is reported and makes `python -m reports` exit 1."""

    accuracy_drop_max: float = Field(0.05, ge=0, description="use a share, such as 0.01")
    output_match_faults_max: int = Field(0, ge=0, description="use 0")
    acceptance_length_min: dict[str, dict[str, PositiveFloat]] = Field(
        default_factory=dict, description="give variant: {benchmark: length}"
    )
    speedup_c1_min: dict[str, PositiveFloat] = Field(default_factory=dict, description="give variant: ratio")
