"""What every metric means, its unit, and how its values are written: the one place for all tables and pages.

A metric measured per percentile, concurrency or draft position carries it at its end (`itl_ms_p50_c8`); `base_name`
drops it.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """Name on the page, unit in results.csv, and a definition in one or two sentences."""

    label: str
    unit: str
    meaning: str


METRICS = {
    "acceptance_length": Metric(
        "Acceptance length",
        "tokens",
        "Tokens that one verify step yields: 1 + accepted draft tokens / verify steps, pooled over all steps of a "
        "benchmark. The 1 is the verifier's own token, so 1.00 means that no draft was ever accepted. Verify steps in "
        "which nothing was drafted are not counted, which flatters look-up methods.",
    ),
    "acceptance_rate_position": Metric(
        "Acceptance per position",
        "share",
        "Share of all verify steps in which the draft token at this position was accepted, and with it all before it. "
        "The positions add up to the acceptance length minus 1.",
    ),
    "emitted_tokens_per_step": Metric(
        "Emitted tokens per step",
        "tokens",
        "Tokens in the replies / verify steps: the acceptance length without what was accepted past a reply's end.",
    ),
    "accuracy_strict": Metric(
        "Accuracy, strict",
        "share",
        "Share of problems whose answer stands in the demanded form (#### N) and is right, by lm-eval.",
    ),
    "accuracy_flexible": Metric(
        "Accuracy, flexible",
        "share",
        "Share of problems where the last number in the reply is the right answer, by lm-eval.",
    ),
    "accuracy_difference": Metric(
        "Accuracy against the base",
        "share",
        "Paired difference on the same problems: this variant minus no speculation. Shown in percentage points.",
    ),
    "output_match_exact": Metric(
        "Output match, exact",
        "share",
        "Share of greedy replies whose token ids all equal those served without speculation.",
    ),
    "output_match_benign": Metric(
        "Output match, near ties",
        "count",
        "Replies that first differ where the verifier itself is undecided: the log-probabilities of its two likeliest "
        "tokens lie closer than the limit.",
    ),
    "output_match_faults": Metric(
        "Output match, faults",
        "count",
        "Replies that first differ anywhere else. One fault means that the output is not the verifier's.",
    ),
    "tokens_per_s": Metric(
        "Tokens per second",
        "tokens/s",
        "Concurrency × output tokens / summed time of the requests, warm-up excluded, measured by GuideLLM.",
    ),
    "speedup": Metric(
        "Speed-up",
        "ratio",
        "Tokens per second / tokens per second without speculation, paired by prompt, at the same concurrency.",
    ),
    "ttft_ms": Metric("Time to first token", "ms", "From sending a request to its first token."),
    "itl_ms": Metric("Inter-token latency", "ms", "First to last token of a request / (output tokens - 1)."),
    "request_s": Metric("Request latency", "s", "From sending a request to its last token."),
    "parity_gap": Metric(
        "Parity gap",
        "tokens",
        "Acceptance length that the exported draft reaches in the reference loop, minus the served one, on the same "
        "replies and within their ends. An interval that stays off zero by more than the margin in the gate means that "
        "the server does not run the draft that was trained.",
    ),
    "training_seconds": Metric("Training time", "s", "Wall time of the optimisation."),
    "training_tokens": Metric("Training tokens", "tokens", "Tokens that the optimisation saw, all epochs together."),
    "training_peak_memory_bytes": Metric("Training memory", "bytes", "Peak memory of the training process."),
    "draft_parameters": Metric("Draft parameters", "count", "Parameters of the draft."),
}

INTERVALS = (
    "Ranges are 95% intervals. Those of acceptance and speed come from resampling whole prompts, because the steps of "
    "one reply depend on each other. Those of shares are Wilson's, those of accuracy differences Agresti and Min's for "
    "matched pairs."
)
_STYLES = {
    "share": "{:.1%}",
    "ratio": "{:.2f}×",
    "tokens/s": "{:.1f}",
    "tokens": "{:.2f}",
    "ms": "{:.0f}",
    "s": "{:.2f}",
}


def base_name(metric: str) -> str:
    """`itl_ms` for `itl_ms_p50_c1`, `accuracy_difference` for `accuracy_strict_difference`: a key of `METRICS`."""
    bare = re.sub(r"(_p\d+)?(_c\d+|_\d+)?$", "", metric)
    return re.sub(r"^accuracy_[a-z]+_difference$", "accuracy_difference", bare)


def unit(metric: str) -> str:
    """Unit of a metric, as results.csv says it."""
    return METRICS[base_name(metric)].unit


def duration(seconds: float) -> str:
    """`4.2 s`, `48 s`, `3 min 12 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(value: float) -> str:
    """`940`, `68,120`, `3.42 M`."""
    return f"{value / 1e6:.2f} M" if abs(value) >= 1e6 else f"{value:,.0f}"


def signed(value: float, digits: int) -> str:
    """`+1.2`, `−0.8` (with a real minus sign), `0.0` without a sign."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text[1:] if float(f"{value:.{digits}f}") == 0 else text


def spread(metric: str, low: float | None, high: float | None) -> str:
    """An interval as people read it, the unit once at most: `84.0 to 95.0%`, `2.31 to 2.52`; nothing without bounds."""
    if low is None or high is None:
        return ""
    least, most = written(metric, low), written(metric, high).removesuffix("×")
    return f"{least.removesuffix('%').removesuffix('×')} to {most}"


def written(metric: str, value: float) -> str:
    """A value as people read it: `87.5%`, `2.41`, `1.42×`, `+0.8` (points), `39.1`."""
    name = base_name(metric)
    if name == "accuracy_difference":
        return signed(100 * value, 1)
    if name == "parity_gap":
        return signed(value, 3)
    if name == "training_seconds":
        return duration(value)
    if name == "training_peak_memory_bytes":
        return f"{value / 2**30:.2f} GiB"
    style = _STYLES.get(METRICS[name].unit)
    return count(value) if style is None or name == "training_tokens" else style.format(value)
