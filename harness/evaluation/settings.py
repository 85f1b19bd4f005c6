"""What the commands of `harness.evaluation` are told: slices of a reproduction, as JSON on the command line.

The functions `*_settings` cut them; called by the Snakefile's rules.
"""

from typing import Any, Literal

from pydantic import Field

from harness.config import Reproduction
from harness.sections.base import Strict
from harness.sections.data import SourceName
from harness.sections.evaluate import Evaluate, Latency, OutputMatch, Sampling
from harness.sections.serve import Serve

Scale = Literal["full", "smoke", "mini"]


class Expected(Strict):
    """What the server must report of itself."""

    method: str | None = Field(None, description="give the engine's name of the drafting method, or null for none")
    num_speculative_tokens: int = Field(0, ge=0, description="give the draft tokens per verify step, 0 for none")


class MeasureSettings(Strict):
    """One variant, measured against one server."""

    evaluate: Evaluate
    serve: Serve
    system_prompt: str | None = Field(None, description="give a system turn, or null for the template's own")
    speculative: dict[str, Any] | None = Field(None, description="give the engine's own drafting settings, or null")
    expected: Expected
    scale: Scale


class MatchSettings(Strict):
    """Replies of two variants compared token by token."""

    near_tie_nats: float = Field(gt=0, description="use nats above 0; a smaller top-2 margin is a near tie")
    exact: bool = Field(False, description="true where every difference is a fault")
    output_match: OutputMatch | None = Field(None, description="give sources and first_tokens, or null")
    scale: Scale


class ParitySettings(Strict):
    """Served acceptance compared with the reference drafting loop."""

    dtype: Literal["bfloat16", "float32"] = Field(description="give the dtype that was served")
    bootstrap_resamples: int = Field(ge=100, description="use 100 or more")
    seed: int = Field(ge=0, description="use a whole number from 0")
    margin_tokens: float = Field(ge=0, description="allow this much between predicted and served length")
    system_prompt: str | None = Field(None, description="give a system turn, or null for the template's own")
    scale: Scale


class LosslessSettings(Strict):
    """Sampled replies held against the verifier's own distribution."""

    sampling: Sampling
    seed: int = Field(ge=0, description="use a whole number from 0")
    scale: Scale


class SpeedSettings(Strict):
    """Step costs worked out from what was served."""

    benchmark: SourceName = Field(description="name the source of the latency check")
    bootstrap_resamples: int = Field(ge=100, description="use 100 or more")
    seed: int = Field(ge=0, description="use a whole number from 0")
    scale: Scale


class SweepSettings(Strict):
    """A server for a moment, which drafts so many tokens a step."""

    serve: Serve
    system_prompt: str | None = Field(None, description="give a system turn, or null for the template's own")
    num_speculative_tokens: int = Field(ge=1, description="draft this many tokens a step")
    method: str | None = Field(description="give the engine's name of a draft's method, or null to draft nonsense")
    latency: Latency
    acceptance_concurrency: int = Field(ge=1, description="use 1 or more requests at once")
    bootstrap_resamples: int = Field(ge=100, description="use 100 or more")
    seed: int = Field(ge=0, description="use a whole number from 0")
    scale: Scale


def measure_settings(
    reproduction: Reproduction, expected: Expected, speculative: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What `measure` needs of `reproduction`, JSON-able, for a variant that the server must report as `expected`."""
    settings = MeasureSettings(
        evaluate=reproduction.evaluate, serve=reproduction.serve, system_prompt=reproduction.data.system_prompt,
        speculative=speculative, expected=expected, scale=reproduction.scale,
    )  # fmt: skip
    return settings.model_dump()


def match_settings(reproduction: Reproduction, variant: str) -> dict[str, Any]:
    """What `match` needs of `reproduction`, JSON-able, for a variant: 8 bits round more, so more ties there."""
    quantised = reproduction.quantised if variant in reproduction.quantised_variants else None
    evaluate, on_cpu = reproduction.evaluate, reproduction.needs.gpus == 0
    one_by_one = reproduction.serve.dtype == "float32" and evaluate.acceptance.concurrency == 1
    settings = MatchSettings(
        near_tie_nats=(quantised or evaluate).near_tie_nats, exact=on_cpu and one_by_one and quantised is None,
        output_match=evaluate.output_match, scale=reproduction.scale,
    )  # fmt: skip
    return settings.model_dump()


def parity_settings(reproduction: Reproduction) -> dict[str, Any]:
    """What `parity` needs of `reproduction`, JSON-able."""
    settings = ParitySettings(
        dtype=reproduction.serve.dtype, bootstrap_resamples=reproduction.evaluate.bootstrap_resamples,
        seed=reproduction.evaluate.seed, margin_tokens=reproduction.evaluate.parity_margin_tokens,
        system_prompt=reproduction.data.system_prompt, scale=reproduction.scale,
    )  # fmt: skip
    return settings.model_dump()


def speed_settings(reproduction: Reproduction) -> dict[str, Any]:
    """What `speed` needs of `reproduction`, JSON-able."""
    evaluate = reproduction.evaluate
    settings = SpeedSettings(
        benchmark=evaluate.latency.benchmark, bootstrap_resamples=evaluate.bootstrap_resamples, seed=evaluate.seed,
        scale=reproduction.scale,
    )  # fmt: skip
    return settings.model_dump()


def sweep_settings(reproduction: Reproduction, method: str | None, draft_tokens: int) -> dict[str, Any]:
    """What `sweep` and `verification` need of `reproduction`, JSON-able: the latency check with fewer requests.

    Raises:
        ValueError: the reproduction has no section `speed`.
    """
    evaluate, speed = reproduction.evaluate, reproduction.evaluate.speed
    if speed is None:
        raise ValueError("evaluate.speed: missing. Fix: add its section")
    changes = {"requests": speed.requests, "concurrency": speed.concurrency, "rates": []}
    latency = evaluate.latency.model_copy(update=changes)
    settings = SweepSettings(
        serve=reproduction.serve, system_prompt=reproduction.data.system_prompt, num_speculative_tokens=draft_tokens,
        method=method, latency=latency, acceptance_concurrency=evaluate.acceptance.concurrency,
        bootstrap_resamples=evaluate.bootstrap_resamples, seed=evaluate.seed, scale=reproduction.scale,
    )  # fmt: skip
    return settings.model_dump()


def lossless_settings(reproduction: Reproduction) -> dict[str, Any]:
    """What `lossless` needs of `reproduction`, JSON-able."""
    evaluate = reproduction.evaluate
    return LosslessSettings(sampling=evaluate.sampling, seed=evaluate.seed, scale=reproduction.scale).model_dump()
