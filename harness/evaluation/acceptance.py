"""How many drafted tokens the server accepts: the difference of two scrapes of its counters, checked by the replies.

Called by `measure.py` around the replies to each source. Definitions, pooled over verify steps of K draft tokens each:

    acceptance_length_pooled = 1 + accepted / drafts           the 1 is the token the verifier adds itself (the bonus)
    acceptance_rate_per_position[j] = accepted at j / drafts   not conditional on earlier positions
    emitted_tokens_per_step = tokens of the replies, less the prefill's, / steps

    acceptance_length_mean_of_prompts = mean over prompts of 1 + accepted / drafts, from each reply's own record

The first length counts tokens beyond the end of a reply, the bonus token behind an accepted end or further drafts
(`accepted_past_end` says how many of both), and only steps that drafted something: both flatter it, and the third one
has neither. Several engines (data parallel) count
apart: their counters are added up, and a restart of one of them is noticed.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from harness.evaluation.client import Answer
from harness.evaluation.statistics import pooled_ratio

PREFIX = "vllm:spec_decode_num_"
SETTLE_S = 0.2
SETTLE_TRIES = 10
RATE_TOLERANCE = 1e-9
PAST_END_SHARE_MAX = 0.02


@dataclass(frozen=True)
class Counters:
    """Drafting counters of one model, summed over engines; `accepted_per_position` is [K].

    `engines` holds each engine's own (drafts, accepted), to notice a restart; no part of equality.
    """

    drafts: int
    draft_tokens: int
    accepted: int
    accepted_per_position: tuple[int, ...]
    engines: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False)

    def since(self, before: "Counters") -> "Counters":
        """What was counted after `before`.

        Raises:
            ValueError: a counter went back, or an engine is gone: there was a restart in between.
        """
        then, now = dict(before.engines) | {"all": _pair(before)}, dict(self.engines) | {"all": _pair(self)}
        for engine, counted in then.items():
            if engine not in now or now[engine][0] < counted[0] or now[engine][1] < counted[1]:
                raise ValueError(
                    f"counters of engine {engine} went back from {counted} to {now.get(engine)}: it was restarted "
                    "between the scrapes"
                )
        per_position = zip(self.accepted_per_position, before.accepted_per_position, strict=True)
        return Counters(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            self.accepted - before.accepted,
            tuple(now - then for now, then in per_position),
        )


def _pair(counters: Counters) -> tuple[int, int]:
    return counters.drafts, counters.accepted


def parse_counters(text: str, model: str, num_speculative_tokens: int) -> Counters:
    """The drafting counters in a /metrics page: every engine of `model` added up, other models left out.

    Raises:
        ValueError: the page has no drafting counters for `model`; the message names the models it has.
    """
    sums: dict[str, dict[str, float]] = {}
    per_position = [0.0] * num_speculative_tokens
    models = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.startswith(PREFIX) or not sample.name.endswith("_total"):
                continue
            models.add(sample.labels.get("model_name"))
            if sample.labels.get("model_name") != model:
                continue
            name = sample.name.removeprefix(PREFIX).removesuffix("_total")
            engines, engine = sums.setdefault(name, {}), sample.labels.get("engine", "")
            engines[engine] = engines.get(engine, 0.0) + sample.value
            if name == "accepted_tokens_per_pos":
                per_position[int(sample.labels["position"])] += sample.value
    if "drafts" not in sums:
        raise ValueError(f"/metrics has no drafting counters for model {model!r}, only for {sorted(map(str, models))}")
    drafts, drafted, accepted = (sums[name] for name in ("drafts", "draft_tokens", "accepted_tokens"))
    return Counters(
        int(sum(drafts.values())),
        int(sum(drafted.values())),
        int(sum(accepted.values())),
        tuple(map(int, per_position)),
        {engine: (int(drafts[engine]), int(accepted[engine])) for engine in drafts},
    )


def settled_counters(scrape: Callable[[], str], model: str, num_speculative_tokens: int) -> Counters:
    """Counters once two scrapes agree: the last step of a reply is counted a moment after the reply is sent."""
    before = parse_counters(scrape(), model, num_speculative_tokens)
    for _ in range(SETTLE_TRIES):
        time.sleep(SETTLE_S)
        after = parse_counters(scrape(), model, num_speculative_tokens)
        if after == before:
            break
        before = after
    return before


def count_details(answers: Sequence[Answer], num_speculative_tokens: int) -> Counters:
    """The same counters added up from the replies' own records of their verify steps."""
    steps = [(a, d) for answer in answers for a, d in _steps(answer)]
    return Counters(
        len(steps),
        sum(drafted for _, drafted in steps),
        sum(accepted for accepted, _ in steps),
        tuple(sum(accepted > j for accepted, _ in steps) for j in range(num_speculative_tokens)),
    )


def _steps(answer: Answer) -> list[tuple[int, int]]:
    spec = answer.spec or {"accepted_per_step": [], "drafted_per_step": []}
    return list(zip(spec["accepted_per_step"], spec["drafted_per_step"], strict=True))


def past_end(answer: Answer) -> int:
    """Tokens that a reply's verify steps gave beyond its last token: the bonus token as well as accepted drafts.

    The prefill emits one token, each step its accepted drafts and one more. Negative where some steps drafted nothing:
    they emit too, but leave no record.
    """
    steps = _steps(answer)
    return sum(accepted + 1 for accepted, _ in steps) - (len(answer.token_ids) - 1)


def benchmark(
    counters: Counters,
    answers: Sequence[Answer],
    resamples: int,
    seed: int,
    kinds: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """The figures of one source.

    Args:
        counters: difference of the scrapes before and after the replies.
        answers: the replies, failed ones included.
        resamples: bootstrap draws over prompts for `low` and `high`.
        seed: makes them repeatable.
        kinds: category of each prompt by id, where the source has some.

    Returns:
        JSON object. Length, rates and interval are None where nothing was drafted. Steps that drafted nothing leave no
        record: they are counted as the tokens that no step accounts for (at most K too few a reply), and leave
        `accepted_past_end` None. `past_end_matters`: tokens beyond the end lengthen the first length by over 2%.
    """
    replies = [answer for answer in answers if answer.error is None]
    drafts = [len(_steps(answer)) for answer in replies]
    accepted = [sum(a for a, _ in _steps(answer)) for answer in replies]
    excess = [past_end(answer) for answer in replies]
    every_step_drafts = bool(replies) and min(excess) >= 0 and sum(drafts) > 0
    emitted = [len(answer.token_ids) - 1 for answer in replies]
    steps = [drafted + max(-beyond, 0) for drafted, beyond in zip(drafts, excess, strict=True)]
    per_step = pooled_ratio(emitted, steps, resamples, seed) if sum(steps) else None
    interval = pooled_ratio(accepted, drafts, resamples, seed, offset=1.0) if sum(drafts) else None
    length = 1 + counters.accepted / counters.drafts if counters.drafts else None
    past_end_share = sum(excess) / (sum(emitted) + sum(excess)) if every_step_drafts else 0.0
    return {
        "drafts": counters.drafts,
        "draft_tokens": counters.draft_tokens,
        "accepted": counters.accepted,
        "accepted_per_position": list(counters.accepted_per_position),
        "acceptance_length_pooled": length,
        "low": interval and interval.low,
        "high": interval and interval.high,
        "acceptance_rate_per_position": [
            n / counters.drafts for n in counters.accepted_per_position if counters.drafts
        ],
        "emitted_tokens_per_step": per_step and per_step.value,
        "emitted_low": per_step and per_step.low,
        "emitted_high": per_step and per_step.high,
        "drafted_step_share": sum(drafts) / sum(steps) if sum(steps) else None,
        "accepted_past_end": sum(excess) if every_step_drafts else None,
        "past_end_matters": past_end_share > PAST_END_SHARE_MAX,
        "prompts": len(replies),
        "mean_of_prompts": mean_of_prompts(replies, resamples, seed),
        "categories": by_category(replies, resamples, seed, kinds or {}),
    }


def mean_of_prompts(replies: Sequence[Answer], resamples: int, seed: int) -> dict[str, Any] | None:
    """Mean over prompts of each reply's own length, with its spread; None where nothing was drafted.

    A long reply counts like a short one here, by its steps in the pooled length: the two differ, in either direction.
    """
    lengths = [1 + sum(a for a, _ in steps) / len(steps) for steps in map(_steps, replies) if steps]
    if not lengths:
        return None
    found = pooled_ratio(lengths, [1.0] * len(lengths), resamples, seed)
    low, middle, high = (float(bound) for bound in np.percentile(lengths, [10, 50, 90]))
    return {
        "acceptance_length_mean_of_prompts": found.value,
        "low": found.low,
        "high": found.high,
        "p10": low,
        "p50": middle,
        "p90": high,
        "prompts": len(lengths),
    }


def by_category(
    replies: Sequence[Answer], resamples: int, seed: int, kinds: Mapping[str, str | None]
) -> dict[str, dict[str, Any]]:
    """Pooled length of each category in which something was drafted, from the replies' own records."""
    groups: dict[str, list[Answer]] = {}
    for reply in replies:
        if kind := kinds.get(reply.id):
            groups.setdefault(kind, []).append(reply)
    found = {}
    for kind, group in sorted(groups.items()):
        drafts = [len(_steps(reply)) for reply in group]
        if sum(drafts):
            accepted = [sum(a for a, _ in _steps(reply)) for reply in group]
            length = pooled_ratio(accepted, drafts, resamples, seed, offset=1.0)
            found[kind] = {"acceptance_length_pooled": length.value, "low": length.low, "high": length.high,
                           "drafts": sum(drafts), "prompts": len(group)}  # fmt: skip
    return found


def identity_checks(figures: dict[str, Any], counters: Counters, answers: Sequence[Answer]) -> dict[str, bool]:
    """What must hold between the figures of one source, whatever the draft is like.

    The comparison with the replies' own records fails too when a request was repeated: the server counts both tries.
    """
    length, rates = figures["acceptance_length_pooled"], figures["acceptance_rate_per_position"]
    return {
        "per_position_sums_to_accepted": sum(counters.accepted_per_position) == counters.accepted,
        "length_is_one_plus_rates": length is None or abs(1 + sum(rates) - length) < RATE_TOLERANCE * len(rates),
        "scrapes_equal_replies": counters == count_details(answers, len(counters.accepted_per_position)),
        "replies_equal_their_sums": all(_sums_hold(answer) for answer in answers),
    }


def _sums_hold(answer: Answer) -> bool:
    """Whether a reply's record of steps adds up to what the server says of the same reply."""
    steps = _steps(answer)
    return answer.spec_sums in (None, (len(steps), sum(d for _, d in steps), sum(a for a, _ in steps)))
