"""Which draft length pays on this machine: reads what was measured of a variant, of the base and of verification.

Called by `python -m harness.evaluation speed`; `speed_model` does the arithmetic, `sweep` serves the further
lengths, `verification` times steps without a draft.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import UserError
from harness.evaluation import results
from harness.evaluation import speed_model as model
from harness.evaluation.results import read_file, read_rows
from harness.evaluation.settings import SpeedSettings
from harness.evaluation.speed_model import Floats, Load
from harness.evaluation.statistics import Interval, paired_ratio
from harness.evaluation.turns import turn_of
from harness.evaluation.walk import inside_reply

MS = 1000.0
Records = list[dict[str, Any]]
Rounds = Mapping[int, Sequence[Sequence[float]]]  # by concurrency; each goes through the lengths 0 .. K
NOTHING_IN_COMMON = "speed: base and draft have no request in common. Fix: measure both with the same settings"


@dataclass(frozen=True)
class Served:
    """One draft length as it was served.

    Attributes:
        records: latency records by concurrency.
        replies: rows with `token_ids` and `spec` by prompt; empty where nothing drafts.
        prompts: token ids of each prompt; empty for a sweep.
    """

    records: dict[int, Records]
    replies: dict[str, dict[str, Any]]
    prompts: dict[str, list[int]] = field(default_factory=dict)


def _records(latency: dict[str, Any]) -> dict[int, Records]:
    loads = {int(level): load for level, load in latency["concurrency"].items()}
    return {level: load["records"] for level, load in sorted(loads.items()) if not load["invalid"]}


def read_measured(folder: Path, benchmark: str) -> Served:
    """What `measure` left of a variant: its latency, and the replies to the prompts of `benchmark`."""
    asked = [row for row in read_rows(folder / "replies.jsonl", results.Asked) if row["source"] == benchmark]
    rows = {row["id"]: row for row in asked if row["spec"]}
    prompts = {row["id"]: row["prompt_token_ids"] for row in asked if turn_of(row["id"]) == 1}
    return Served(_records(read_file(folder / "latency.json", results.Latency)), rows, prompts)


def read_swept(path: Path) -> tuple[int, Served]:
    """(draft length, what `sweep` left of it)."""
    content = read_file(path, results.Swept)
    rows = {row["id"]: row for row in content["replies"] if row["spec"]}
    return content["num_speculative_tokens"], Served(_records(content["latency"]), rows)


def steps_until(tokens: int, accepted: Sequence[int]) -> int | None:
    """Verify steps that gave the first `tokens` tokens after the prefill's; None where there are not enough.

    Args:
        tokens: how many.
        accepted: accepted drafts of each step, all of which drafted something.
    """
    steps = int(np.searchsorted(np.cumsum([n + 1 for n in accepted]), tokens)) + 1
    return steps if steps <= len(accepted) else None


def load_of(records: Records, replies: Mapping[str, dict[str, Any]] | None) -> dict[str, tuple[float, ...]]:
    """Tokens after the first, steps, seconds to the first token and after it, by prompt.

    Args:
        records: latency records of one concurrency.
        replies: with the records of their steps; None where every step gives one token.
    """
    found: dict[str, tuple[float, ...]] = {}
    for record in records:
        tokens, first_s = int(record["output_tokens"]) - 1, record["ttft_ms"] / MS
        steps: int | None = tokens
        if replies is not None:
            reply = replies.get(record["id"])
            steps = steps_until(tokens, reply["spec"]["accepted_per_step"]) if reply else None
        if steps and tokens > 0:
            found[record["id"]] = (tokens, steps, first_s, record["latency_s"] - first_s)
    return found


def _arrays(rows: Mapping[str, tuple[float, ...]], ids: Sequence[str]) -> Load:
    return Load(*(np.array([rows[each][column] for each in ids], float) for column in range(4)))


class Comparison:
    """One concurrency: requests at every draft length that was served there, on the prompts that all of them have."""

    def __init__(self, served: Mapping[int, Served], rounds: Rounds, level: int, settings: SpeedSettings) -> None:
        self.records = {k: each.records[level] for k, each in served.items() if level in each.records}
        rows = {k: load_of(self.records[k], served[k].replies if k else None) for k in self.records}
        self.ids = sorted(set.intersection(*(set(each) for each in rows.values())))
        if not self.ids:
            raise UserError(NOTHING_IN_COMMON)
        self.loads = {k: _arrays(each, self.ids) for k, each in rows.items()}
        self.draws_DP = model.draw(len(self.ids), settings.bootstrap_resamples, settings.seed)
        timed = rounds.get(level)
        self.extra_KD = timed and model.extra_seconds(np.array(timed), settings.bootstrap_resamples, settings.seed + 2)
        self.settings = settings

    def verify(self, k: int) -> Floats | None:
        """Seconds of a step that only verifies k tokens [D]; None where that was not timed."""
        if self.extra_KD is None or k >= len(self.extra_KD):
            return None
        return model.step_seconds(self.loads[0], self.draws_DP) + self.extra_KD[k]

    def measured_steps(self) -> dict[int, Floats]:
        """Seconds of a step [D] by draft length."""
        return {k: model.step_seconds(load, self.draws_DP) for k, load in self.loads.items()}

    def tokens(self, k: int) -> Floats:
        """Tokens of a step [D] as served at draft length k."""
        return model.pooled(self.loads[k].tokens_P, self.loads[k].steps_P, self.draws_DP)

    def speedup(self, k: int) -> Interval:
        """Measured speed-up of whole requests at draft length k."""
        return paired_ratio(self.records[0], self.records[k], self.settings.bootstrap_resamples, self.settings.seed)


def _tokens(served: Served, draft_tokens: int, settings: SpeedSettings) -> tuple[dict[int, Floats], dict[str, Any]]:
    """Expected tokens of a step [D] by draft length up to the served one, from all its replies, and the rates."""
    rows = [row for row in served.replies.values() if row["spec"]["accepted_per_step"]]
    if not rows:
        raise UserError("replies.jsonl: no record of verify steps. Fix: measure the variant with a server that drafts")
    steps = [inside_reply(row["spec"]["accepted_per_step"], len(row["token_ids"])) for row in rows]
    draws_DP = model.draw(len(rows), settings.bootstrap_resamples, settings.seed + 1)
    rates_KD = model.position_rates(steps, draft_tokens, draws_DP)
    emitted = np.array([len(row["token_ids"]) - 1 for row in rows], float)
    emitted_D = model.pooled(emitted, np.array([len(each) for each in steps], float), draws_DP)
    return model.expected_tokens(rates_KD, emitted_D), {"replies": len(rows), "rates": rates_KD[:, 0].tolist()}


def compare(served: Mapping[int, Served], configured: int, rounds: Rounds, settings: SpeedSettings) -> dict[str, Any]:
    """Content of the speed file without variant and provenance.

    Args:
        served: by draft length: 0 (the base), the configured length, and what a sweep served besides.
        configured: the draft length that the checkpoint gives.
        rounds: seconds of steps without a draft; where it lacks a concurrency, the parts of a step stay unknown.
        settings: section of the reproduction.

    Raises:
        UserError: base and draft have no request in common.
    """
    tokens, acceptance = _tokens(served[configured], configured, settings)
    levels = [level for level in served[0].records if level in served[configured].records]
    if not levels:
        raise UserError(NOTHING_IN_COMMON)
    found = {level: Comparison(served, rounds, level, settings) for level in levels}
    return {
        "num_speculative_tokens": configured,
        "benchmark": settings.benchmark,
        "acceptance_rate_per_position": acceptance["rates"],
        "replies": acceptance["replies"],
        "concurrency": {str(level): _level(each, tokens) for level, each in found.items()},
    }


def measure_speed(
    base: Path, measured: Path, verification: Path | None, swept: Sequence[Path], settings: SpeedSettings
) -> dict[str, Any]:
    """Content of the speed file without variant and provenance, from the folders and files of the measurements.

    Args:
        base: measured/none.
        measured: folder of the variant.
        verification: file of `verification`, or None to leave the parts of a step unknown.
        swept: files of `sweep`, for further draft lengths.
        settings: section of the reproduction.

    Raises:
        UserError: a file is missing or damaged, or nothing can be compared.
    """
    configured = read_file(measured / "acceptance.json", results.Acceptance)["num_speculative_tokens"]
    served = {0: read_measured(base, settings.benchmark), configured: read_measured(measured, settings.benchmark)}
    for key, prompt in served[0].prompts.items():
        if served[configured].prompts.get(key, prompt) != prompt:
            raise UserError(f"{base} and {measured}: {key} is another prompt there. Fix: give folders of one verifier")
    served |= {k: each for k, each in map(read_swept, swept) if k != configured}
    timed = read_file(verification, results.Verification)["step_seconds"] if verification else {}
    found = compare(served, configured, {int(level): rounds for level, rounds in timed.items()}, settings)
    return found | {"figures": figures(found)}


def _level(found: Comparison, tokens: Mapping[int, Floats]) -> dict[str, Any]:
    measured, prompts, longest = found.measured_steps(), len(found.ids), max(tokens)
    # No rate is known beyond the configured length: what was served there gives its own tokens a step.
    tokens = dict(tokens) | {k: found.tokens(k) for k in measured if k > longest}
    curve = model.step_curve(measured, longest) | {k: each for k, each in measured.items() if k > longest}
    rates = {k: tokens[k] / step_D for k, step_D in curve.items()}
    choice = model.choose(rates, prompts)
    line = model.fit_line({k: step_D for k, step_D in measured.items() if k > 0})
    return {
        "prompts": prompts,
        "best_draft_tokens": choice.best,
        "not_told_apart": choice.not_told_apart,
        "fit": line and {
            "fixed_s": float(line.fixed_D[0]), "per_draft_s": float(line.slope_D[0]),
            "points": line.points, "residual_s": line.residual,
        },
        "points": [_point(k, curve, tokens, found, choice) for k in sorted(curve)],
    }  # fmt: skip


def _as_dict(values_D: Floats | None, prompts: int) -> dict[str, Any] | None:
    return None if values_D is None else model.interval(values_D, prompts).as_dict()


def _point(
    k: int, curve: Mapping[int, Floats], tokens: Mapping[int, Floats], found: Comparison, choice: model.Choice
) -> dict[str, Any]:
    step_D, base_D, prompts = curve[k], curve[0], len(found.ids)
    verify_D = found.verify(k)
    load = found.loads.get(k)
    predicted = model.request_speedup(found.loads[0], tokens[k], step_D, found.draws_DP)
    return {
        "draft_tokens": k,
        "measured": load is not None,
        "step_s": _as_dict(step_D, prompts),
        "verify_s": _as_dict(verify_D, prompts),
        "draft_s": None if verify_D is None or not k else _as_dict(step_D - verify_D, prompts),
        "break_even_length": _as_dict(step_D / base_D, prompts),
        "expected_length": _as_dict(tokens[k], prompts),
        "measured_length": load and _as_dict(found.tokens(k), prompts),
        "predicted_speedup": _as_dict(predicted, prompts),
        "measured_speedup": None if load is None or not k else found.speedup(k).as_dict(),
        "share_best": choice.share_best.get(k),
    }


FIGURES = {
    "step_s": ("step_ms", MS),
    "verify_s": ("verify_ms", MS),
    "draft_s": ("draft_ms", MS),
    "break_even_length": ("break_even_length", 1.0),
    "expected_length": ("expected_length", 1.0),
    "measured_length": ("step_length", 1.0),
    "predicted_speedup": ("predicted_speedup", 1.0),
    "measured_speedup": ("sweep_speedup", 1.0),
}


def figures(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows for the long table: each figure by draft length (`_k3`), loads beyond the first under a benchmark's name."""
    rows, first = [], next(iter(found["concurrency"]))
    for level, each in found["concurrency"].items():
        benchmark = found["benchmark"] + ("" if level == first else f"/{level} at once")
        close = [each["best_draft_tokens"], *each["not_told_apart"]]
        best = {"value": each["best_draft_tokens"], "low": min(close), "high": max(close), "n": each["prompts"]}
        rows.append({"metric": "best_draft_tokens", "benchmark": benchmark} | best)
        for point in each["points"]:
            for key, (metric, scale) in FIGURES.items():
                if point[key] is not None:
                    values = {name: scaled(point[key][name], scale) for name in ("value", "low", "high")}
                    name = f"{metric}_k{point['draft_tokens']}"
                    rows.append({"metric": name, "benchmark": benchmark, "n": point[key]["n"]} | values)
    return rows


def scaled(value: float | None, scale: float) -> float | None:
    """`value` in another unit, None as it is."""
    return None if value is None else value * scale
