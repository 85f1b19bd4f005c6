"""What every metric means, its unit, how it is pooled and where it is shown: the one place for all tables and pages.

A metric measured per percentile, load or draft position carries it at its end (`itl_ms_p50_c8`); `reports.wording`
takes such a name apart. A new metric needs an entry here and rows; it then stands in "All figures", and with a `chart`
it is drawn.
"""

from dataclasses import dataclass

# What the letter before the last number of a metric's name counts; without a letter it is the draft position.
AXES = {"": "draft position", "c": "requests at once", "k": "draft tokens per step", "r": "requests per second"}
PERCENTILES = {"p50": "median", "p95": "95th percentile", "p99": "99th percentile"}


@dataclass(frozen=True)
class Metric:
    """Name on the page, unit in results.csv, a definition in one or two sentences, and how to read and show it.

    Args:
        better: `higher`, `lower`, or nothing where neither is better.
        pooled: over what the figure is taken, and how.
        section: id of the page's section that draws it.
        chart: `benchmark` for one panel with a place per benchmark, `axis` for one panel per benchmark over what the
            end of the name counts; nothing for no figure. Categories of a benchmark get a panel in both cases.
        line: value of the dashed line in the figure.
        beside: another metric whose figures stand in the same panels as hollow points, such as measured beside
            predicted ones.
    """

    label: str
    unit: str
    meaning: str
    better: str = ""
    pooled: str = ""
    section: str = ""
    chart: str = ""
    line: float | None = None
    beside: str = ""

    @property
    def read(self) -> str:
        """How to read the figure: `tokens, over all verify steps of a benchmark, higher is better`."""
        better = f"{self.better} is better" if self.better else ""
        return ", ".join(part for part in (self.unit, self.pooled, better) if part)


METRICS = {
    "acceptance_length": Metric(
        "Acceptance length",
        "tokens",
        "Tokens that one verify step with a draft yields: 1 + accepted draft tokens / such steps. The 1 is the "
        "verifier's own token, so 1.00 means that no draft was ever accepted. Steps in which nothing was drafted are "
        "not counted, which flatters look-up methods: of those, compare the emitted tokens per step.",
        better="higher",
        pooled="over all steps with a draft of a benchmark",
        section="acceptance",
        chart="benchmark",
        line=1.0,
    ),
    "acceptance_length_mean_of_prompts": Metric(
        "Acceptance length, mean of prompts",
        "tokens",
        "Mean over prompts of 1 + accepted draft tokens / verify steps of the prompt's own reply. A short reply counts "
        "like a long one, so that it differs from the pooled length in either direction.",
        better="higher",
        pooled="over prompts",
    ),
    "accepted_past_end": Metric(
        "Tokens past the end",
        "tokens",
        "Tokens of verify steps beyond the end of their replies, which nobody sees: mostly the verifier's own token "
        "behind an accepted end of reply, seldom accepted draft tokens. They are in the acceptance length (the own "
        "token as its 1), not in the emitted tokens per step.",
        better="lower",
        pooled="over all verify steps of a benchmark",
    ),
    "acceptance_rate_position": Metric(
        "Acceptance per position",
        "share",
        "Share of the verify steps with a draft in which the draft token at this position was accepted, and with it "
        "all before it. The positions add up to the acceptance length minus 1.",
        better="higher",
        pooled="over all steps with a draft of a benchmark",
        section="acceptance",
        chart="axis",
    ),
    "drafted_step_share": Metric(
        "Steps with a draft",
        "share",
        "Share of verify steps in which something was drafted. Below 100%, only the emitted tokens per step say what a "
        "step yields. A step without a draft leaves no record: such steps are counted by the tokens that no other step "
        "accounts for.",
        pooled="over all verify steps of a benchmark",
    ),
    "emitted_tokens_per_step": Metric(
        "Emitted tokens per step",
        "tokens",
        "Tokens in the replies / verify steps, those without a draft included: the acceptance length without what was "
        "accepted past a reply's end, and the fair figure for look-up methods, which draft in some steps only.",
        better="higher",
        pooled="over all verify steps of a benchmark",
    ),
    "accuracy_strict": Metric(
        "Accuracy, strict",
        "share",
        "Share of problems whose answer stands in the demanded form (#### N) and is right, by lm-eval.",
        better="higher",
        pooled="over problems",
    ),
    "accuracy_flexible": Metric(
        "Accuracy, flexible",
        "share",
        "Share of problems where the last number in the reply is the right answer, by lm-eval.",
        better="higher",
        pooled="over problems",
    ),
    "accuracy_difference": Metric(
        "Accuracy against the base",
        "share",
        "Paired difference on the same problems: this variant minus no speculation. Shown in percentage points.",
        better="higher",
        pooled="over problems, in pairs",
    ),
    "output_match_exact": Metric(
        "Output match, exact",
        "share",
        "Share of greedy replies whose token ids all equal those served without speculation.",
        better="higher",
        pooled="over replies",
    ),
    "output_match_benign": Metric(
        "Output match, near ties",
        "count",
        "Replies that first differ where the verifier itself is undecided: the log-probabilities of its two likeliest "
        "tokens lie closer than the limit.",
        pooled="over replies",
    ),
    "output_match_faults": Metric(
        "Output match, faults",
        "count",
        "Replies that first differ anywhere else. One fault means that the output is not the verifier's.",
        better="lower",
        pooled="over replies",
    ),
    "margin_change_largest": Metric(
        "Largest change of a close margin",
        "nats",
        "How far the run rounds from the base's: by how much the gap between the log-probabilities of the verifier's "
        "two likeliest tokens differs between both, at the tokens that both wrote and where the base puts the gap "
        "below 2 nats. What lies closer than this can fall either way.",
        pooled="over close tokens",
    ),
    "output_match_start": Metric(
        "Output match, first tokens",
        "share",
        "Share of greedy replies, to the sources that the reproduction names, whose first token ids equal those served "
        "without speculation: the form in which others publish it.",
        better="higher",
        pooled="over replies",
    ),
    "replies_thinking_only": Metric(
        "Replies with reasoning only",
        "count",
        "Replies to the accuracy tasks that used up their length on reasoning: no answer, scored as wrong.",
        better="lower",
    ),
    "replies_empty": Metric("Empty replies", "count", "Empty replies to the accuracy tasks.", better="lower"),
    "replies_cut": Metric(
        "Cut replies", "count", "Replies to the accuracy tasks that reached the length limit.", better="lower"
    ),
    "replies_failed": Metric(
        "Failed replies", "count", "Requests of the accuracy tasks that failed at every attempt.", better="lower"
    ),
    "tokens_per_s": Metric(
        "Tokens per second",
        "tokens/s",
        "Concurrency × output tokens / summed time of the requests, warm-up excluded, measured by GuideLLM.",
        better="higher",
        pooled="over all tokens of a load",
        section="speed",
        chart="axis",
    ),
    "speedup": Metric(
        "Speed-up",
        "ratio",
        "Tokens per second / tokens per second without speculation, paired by prompt, at the same concurrency. The two "
        "are timed minutes apart, on a server each; the interval is widened by what the machine itself may have "
        "changed in between (machine drift).",
        better="higher",
        pooled="over all tokens of a load, in pairs",
        section="speed",
        chart="axis",
        line=1.0,
    ),
    "draft_speed_ratio": Metric(
        "Speed of one draft over another",
        "ratio",
        "Tokens per second of the faster draft / those of the other, paired by prompt, each at its own draft length. "
        "Widened by machine drift like the speed-up. An interval that holds 1 does not tell the two apart.",
        better="higher",
        pooled="over all tokens of a load, in pairs",
    ),
    "machine_drift": Metric(
        "Machine drift",
        "ratio",
        "Time of a fixed piece of work on all cores beside this load / beside the base's load: how much slower the "
        "machine itself was.",
    ),
    "others_cpu_share": Metric(
        "Other programs",
        "share",
        "Share of all cores' time that other programs took while a load was timed.",
        better="lower",
    ),
    "failure_share": Metric(
        "Failed requests", "share", "Requests of a load without a whole reply / requests.", better="lower"
    ),
    "output_tokens_per_request": Metric(
        "Length of the replies",
        "tokens",
        "Output tokens per successful request of a load. No reply is forced to a length.",
        pooled="over requests",
    ),
    "checks_seconds": Metric(
        "Time of the checks", "s", "From the server being ready to the end of its checks.", better="lower"
    ),
    "ttft_ms": Metric(
        "Time to first token",
        "ms",
        "From sending a request to its first token.",
        better="lower",
        pooled="over requests",
        section="speed",
        chart="axis",
    ),
    "itl_ms": Metric(
        "Inter-token latency",
        "ms",
        "First to last token of a request / (output tokens - 1).",
        better="lower",
        pooled="over requests",
        section="speed",
        chart="axis",
    ),
    "chunk_gap_ms": Metric(
        "Gap between chunks",
        "ms",
        "First to last chunk of a reply's stream / (chunks - 1). A chunk holds all tokens of a verify step: this is no "
        "time of a token.",
        better="lower",
        pooled="over requests",
    ),
    "request_s": Metric(
        "Request latency",
        "s",
        "From sending a request to its last token.",
        better="lower",
        pooled="over requests",
        section="speed",
        chart="axis",
    ),
    "step_ms": Metric(
        "Time of a step",
        "ms",
        "Seconds from a request's first to its last token / verify steps, by draft length; at a length that was not "
        "served, on the line through those that were. At 0 nothing is drafted.",
        better="lower",
        pooled="over all steps of a load",
        section="speed",
        chart="axis",
    ),
    "verify_ms": Metric(
        "Time of a step, verification",
        "ms",
        "A step without drafting, and what its tokens to verify add to it: found from steps that verified nonsense, "
        "which is drafted in no time.",
        better="lower",
        pooled="over all steps of a load",
    ),
    "draft_ms": Metric(
        "Time of a step, drafting",
        "ms",
        "What is left of a step beside its verification.",
        better="lower",
        pooled="over all steps of a load",
    ),
    "break_even_length": Metric(
        "Break-even length",
        "tokens",
        "Tokens that a step must yield to be worth its time: time of a step / time of a step without drafting.",
        better="lower",
        pooled="over all steps of a load",
    ),
    "expected_length": Metric(
        "Expected tokens per step",
        "tokens",
        "1 + the acceptance rates up to this draft length, as measured at the draft's own length, scaled to the tokens "
        "that its steps emitted.",
        better="higher",
        pooled="over all verify steps of a benchmark",
    ),
    "step_length": Metric(
        "Tokens per step at this draft length",
        "tokens",
        "Tokens after the first / verify steps, of the requests that were timed at this draft length.",
        better="higher",
        pooled="over all steps of a load",
    ),
    "predicted_speedup": Metric(
        "Predicted speed-up",
        "ratio",
        "Speed-up of whole requests that the expected tokens and the time of a step give at a draft length.",
        better="higher",
        pooled="over all tokens of a load, in pairs",
        section="speed",
        chart="axis",
        line=1.0,
        beside="sweep_speedup",
    ),
    "sweep_speedup": Metric(
        "Measured speed-up by draft length",
        "ratio",
        "The speed-up as served at a draft length, to be compared with the predicted one. Its interval resamples "
        "prompts alone: machine drift is not in it.",
        better="higher",
        pooled="over all tokens of a load, in pairs",
    ),
    "best_draft_tokens": Metric(
        "Best draft length",
        "count",
        "Draft tokens per step with the most tokens per second on this machine, of the lengths with a time of a step: "
        "no draft, those served and those between. Its range holds the lengths that could not be told apart from it, "
        "with intervals over prompts alone.",
        pooled="over all steps of a load",
        section="speed",
    ),
    "parity_gap": Metric(
        "Parity gap",
        "tokens",
        "Acceptance length that the exported draft reaches in the reference loop, minus the served one, on the same "
        "replies and within their ends. The gate fails when the whole interval lies beyond the margin: then the server "
        "does not run the draft that was trained. An interval that only reaches beyond it is not failed, and does not "
        "show that both agree. The gate fails too when the draft is served far below its validation on every "
        "benchmark; then the report names the trap that explains it, a known mistake of export, loading or training "
        "such as the wrong layers, or says that none of the known ones does.",
        pooled="over verify steps, in pairs of replies",
    ),
    "parity_predicted_rate": Metric(
        "Acceptance per position, predicted",
        "share",
        "Share of verify steps in which the reference loop accepts the draft token at this position, on the served "
        "replies and within their ends.",
        pooled="over all verify steps of a benchmark",
    ),
    "parity_served_rate": Metric(
        "Acceptance per position, served within the reply",
        "share",
        "The served acceptance that the prediction is held against: like acceptance per position, but without draft "
        "tokens accepted past a reply's end. The two are equal where nothing but the verifier's own token lies there.",
        pooled="over all verify steps of a benchmark",
    ),
    "sampling_p": Metric(
        "Sampling, p-value",
        "p",
        "Chance of tokens as far from the verifier's own distribution as the sampled ones, were the sampler right. "
        "Below the false alarm rate in the gate, drafting changes what the verifier says at a temperature above 0.",
        pooled="over all sampled tokens, Bonferroni over the tests",
        section="sampling",
    ),
    "sampling_positions": Metric(
        "Sampling, tokens tested",
        "count",
        "Sampled tokens by how they came about: plain (no draft stood there), draft (a draft stood there and was "
        "accepted or replaced), bonus (behind drafts that were all accepted), or all.",
        section="sampling",
    ),
    "sampling_detectable_bias": Metric(
        "Sampling, bias that would show",
        "share",
        "Share of tokens that the test would find 9 times in 10, were the verifier's likeliest token taken in their "
        "stead.",
        better="lower",
        section="sampling",
    ),
    "training_seconds": Metric("Training time", "s", "Wall time of the optimisation.", better="lower"),
    "training_gpu_hours": Metric(
        "Training, GPU hours", "h", "Wall time of the optimisation times the GPUs it ran on.", better="lower"
    ),
    "training_tokens": Metric("Training tokens", "tokens", "Tokens that the optimisation saw, all epochs together."),
    "training_peak_memory_bytes": Metric(
        "Training memory", "bytes", "Peak memory of the training process.", better="lower"
    ),
    "draft_parameters": Metric("Draft parameters", "count", "Parameters of the draft."),
}

INTERVALS = (
    "Ranges are 95% intervals. Those of acceptance and speed come from resampling whole prompts, because the steps of "
    "one reply depend on each other. Those of shares are Wilson's, those of accuracy differences Agresti and Min's for "
    "matched pairs. They are those of one run: what changes from run to run is not in them."
)
