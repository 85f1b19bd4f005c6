"""What is measured on every variant, and what a run must reach."""

from typing import Annotated, Literal, get_args

from pydantic import Field, PositiveFloat, PositiveInt

from harness.sections.base import Seed, Strict
from harness.sections.data import SourceName

TaskName = Literal["word_problems", "image_questions", "gsm8k", "gsm8k_5shot"]
Share = Annotated[float, Field(ge=0, le=1)]
DraftTokens = Annotated[int, Field(ge=1, le=32)]


class Acceptance(Strict):
    """Greedy replies to the held-out prompts: acceptance and output match come from them."""

    limit: int | None = Field(None, ge=1, description="ask at most this many prompts of each source, or leave it out")
    max_new_tokens: int = Field(ge=1, description="use 1 or more tokens")
    concurrency: int = Field(ge=1, description="use 1 or more requests at once")


class Accuracy(Strict):
    """Scores of lm-eval tasks against the running server."""

    tasks: list[TaskName] = Field(min_length=1, description=f"use {', '.join(get_args(TaskName))}")
    limit: int = Field(ge=1, description="score at most this many problems of each task")
    max_new_tokens: int = Field(ge=1, description="use 1 or more tokens")
    concurrency: int = Field(ge=1, description="use 1 or more requests at once")
    error_share_max: float = Field(0.01, ge=0, le=1, description="use a share: with more failed replies it is invalid")


class OutputMatch(Strict):
    """Equal replies counted as others count them: over some sources, and only the start of each reply."""

    sources: list[SourceName] = Field(min_length=1, description="list held-out sources")
    first_tokens: int = Field(ge=1, description="compare this many tokens of each reply")
    limit: int | None = Field(None, ge=1, description="compare at most so many replies of each source, or null")


class Latency(Strict):
    """GuideLLM's load: so many requests at once, and so many a second."""

    benchmark: SourceName = Field(description="name a held-out source")
    concurrency: list[PositiveInt] = Field(min_length=1, description="list the numbers of requests at once")
    rates: list[PositiveFloat] = Field(default_factory=list, description="list requests per second, or leave it out")
    arrivals: Literal["poisson", "constant"] = Field("poisson", description="use poisson or constant for the rates")
    requests: int = Field(ge=1, description="measure this many requests at each load")
    warmup_requests: int = Field(2, ge=1, description="send at least 1 before the clock starts")
    max_new_tokens: int = Field(ge=1, description="use 1 or more tokens")
    failure_share_max: float = Field(0.01, ge=0, le=1, description="use a share: with more failures it is invalid")
    # All cores wait for the one that is taken: with 5% taken of two, decoding was 30% slower (2026-11-30).
    others_cpu_share_max: float = Field(
        0.04, ge=0, le=1, description="a figure is not comparable when other programs took a larger share of the cores"
    )
    machine_drift_max: float = Field(
        0.2, ge=0, description="a speed-up is not comparable when the machine itself changed by a larger share"
    )


class Speed(Strict):
    """What a step costs by draft length: further lengths are served for a moment, on `latency`'s benchmark."""

    draft_tokens: dict[str, list[DraftTokens]] = Field(
        min_length=1, description="give algorithm: [further draft tokens per step], or [] for its own length alone"
    )
    requests: int = Field(ge=2, description="send this many requests at each further length")
    concurrency: list[int] = Field(min_length=1, description="list the numbers of requests at once")


class Sampling(Strict):
    """Replies at a temperature above 0, to be held against the verifier's own distribution.

    A sampler that ignores the temperature shows away from 1 only. Above 1 there is more to choose: at 1.3 a token of a
    small model tells ten times as much as at 0.8 (docs/metrics.md), and it still writes words.
    """

    prompts: int = Field(8, ge=1, description="ask 1 prompt or more, taken from the held-out sources in turn")
    samples: int = Field(8, ge=1, description="sample every prompt 1 time or more")
    max_new_tokens: int = Field(32, ge=2, description="use 2 or more tokens")
    concurrency: int = Field(8, ge=1, description="use 1 or more requests at once")
    temperature: float = Field(1.3, gt=0, le=2, description="use a number above 0, at most 2")
    false_alarm_rate: float = Field(0.001, gt=0, lt=0.5, description="a right sampler may fail this often at most")


class Evaluate(Strict):
    """What is measured on every variant."""

    bootstrap_resamples: int = Field(2000, ge=100, le=100_000, description="use 100 to 100,000")
    seed: Seed = 0
    near_tie_nats: float = Field(0.5, gt=0, description="use nats above 0; a smaller top-2 margin is a near tie")
    parity_margin_tokens: float = Field(0.05, ge=0, description="allow this much between predicted and served length")
    acceptance: Acceptance
    accuracy: Accuracy
    output_match: OutputMatch | None = Field(None, description="give sources and first_tokens, or leave it out")
    latency: Latency
    speed: Speed | None = Field(None, description="give draft lengths to try, or leave it out")
    sampling: Sampling = Field(default_factory=Sampling, description="leave out for the defaults")


class Gates(Strict):
    """What the run must reach; a missed gate is reported and makes `python -m reports` exit 1."""

    accuracy_extraction: Literal["strict", "flexible"] = Field("flexible", description="use strict or flexible")
    accuracy_drop_max: float = Field(0.05, ge=0, description="use a share, such as 0.01")
    accuracy_min: dict[TaskName, Share] = Field(default_factory=dict, description="give task: share of right answers")
    output_match_exact_min: Share | None = Field(
        None,
        description="give the least share of equal replies, counted as evaluate.output_match says if that is there",
    )
    output_match_faults_max: int = Field(0, ge=0, description="use 0")
    acceptance_length_min: dict[str, dict[str, PositiveFloat]] = Field(
        default_factory=dict, description="give variant: {benchmark: length}"
    )
    speedup_c1_min: dict[str, PositiveFloat] = Field(default_factory=dict, description="give variant: ratio")
