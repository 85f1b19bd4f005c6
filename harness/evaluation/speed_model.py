"""What an engine step costs as a function of the draft length, and which length pays: arithmetic on served requests.

Called by `speed.py`. Greedy requests with the same prompts were served at several draft lengths k, 0 among them:

    step_s(k)   = seconds from first to last token / verify steps, pooled over requests
    verify_s(k) = step_s(0) + what a step with k tokens to verify took beyond one without, no draft being computed
    draft_s(k)  = step_s(k) - verify_s(k); at lengths that were not served, on the line through those that were
    tokens(k)   = expected tokens of a step: 1 + the rates of positions 1 to k of the longest draft, scaled so that the
                  configured length gives the tokens that its steps were seen to emit

so that the decode rate is tokens(k) / step_s(k), a draft breaks even at step_s(k) / step_s(0) tokens, and the best k
has the highest rate.
Intervals resample prompts, all figures together; what a machine does differently from one server to the next is not in
them.

Shape letters: P = prompts, D = bootstrap draws, of which the first is the sample itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.evaluation.statistics import CONFIDENCE, Interval

Floats = NDArray[np.float64]
Draws = NDArray[np.int64]


@dataclass(frozen=True)
class Load:
    """Requests served at one draft length and concurrency, one entry a prompt.

    Attributes:
        tokens_P: reply tokens after the first, which prefill gives.
        steps_P: verify steps that gave them.
        first_s_P: seconds to the first token.
        decode_s_P: seconds from the first token to the last.
    """

    tokens_P: Floats
    steps_P: Floats
    first_s_P: Floats
    decode_s_P: Floats


def draw(prompts: int, resamples: int, seed: int) -> Draws:
    """Positions of prompts, int [1 + resamples, P]: the sample itself, then draws with replacement."""
    drawn = np.random.default_rng(seed).integers(0, prompts, (resamples, prompts))
    return np.vstack([np.arange(prompts), drawn])


def interval(values_D: Floats, prompts: int) -> Interval:
    """First draw as the value, percentiles of the others as the interval; no interval from a single prompt."""
    kept = values_D[1:][np.isfinite(values_D[1:])]
    if prompts < 2 or not len(kept):
        return Interval(float(values_D[0]), None, None, prompts)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(kept, [tail, 1 - tail])
    return Interval(float(values_D[0]), float(low), float(high), prompts)


def pooled(numerators_P: Floats, denominators_P: Floats, draws_DP: Draws) -> Floats:
    """Sum over sum, for every draw [D]; not finite where the denominators sum to 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return numerators_P[draws_DP].sum(axis=1) / denominators_P[draws_DP].sum(axis=1)


def step_seconds(load: Load, draws_DP: Draws) -> Floats:
    """Seconds of a verify step, for every draw [D]."""
    return pooled(load.decode_s_P, load.steps_P, draws_DP)


def extra_seconds(rounds_RK: Floats, resamples: int, seed: int) -> Floats:
    """Median seconds of a step with 0 .. K tokens to verify beyond one with none, [K + 1, D]; draws are of rounds.

    Args:
        rounds_RK: seconds [R, K + 1]; each round went through all lengths.
        resamples: bootstrap draws.
        seed: makes them repeatable.
    """
    draws_DR = draw(len(rounds_RK), resamples, seed)
    medians_DK = np.median(rounds_RK[draws_DR], axis=1)
    return (medians_DK - medians_DK[:, :1]).T


@dataclass(frozen=True)
class Line:
    """y = fixed + slope * k for every draw [D]; `residual` of the sample: root mean square, None for up to 2 points."""

    fixed_D: Floats
    slope_D: Floats
    points: int
    residual: float | None

    def at(self, k: float) -> Floats:
        """y at k, for every draw [D]."""
        return self.fixed_D + self.slope_D * k


def fit_line(values: Mapping[int, Floats]) -> Line | None:
    """Least squares through y [D] by k; None for fewer than 2 points."""
    if len(values) < 2:
        return None
    k = np.array(sorted(values), float)
    y_kD = np.stack([values[int(each)] for each in k])
    centred = k - k.mean()
    slope_D = centred @ y_kD / (centred @ centred)
    fixed_D = y_kD.mean(axis=0) - slope_D * k.mean()
    gaps = y_kD[:, 0] - (fixed_D[0] + slope_D[0] * k)
    return Line(fixed_D, slope_D, len(k), float(np.sqrt(np.mean(gaps**2))) if len(k) > 2 else None)


def step_curve(measured: Mapping[int, Floats], up_to: int) -> dict[int, Floats]:
    """Seconds of a step by draft length 0 to `up_to`: as measured, and on the fitted line in between.

    A draft's own cost begins at length 1, so that length 0 is no point of the line. Lengths that neither were measured
    nor have a line are left out.
    """
    line = fit_line({k: values for k, values in measured.items() if k > 0})
    curve = {}
    for k in range(up_to + 1):
        if k in measured:
            curve[k] = measured[k]
        elif line is not None:
            curve[k] = line.at(k)
    return curve


def position_rates(accepted: Sequence[Sequence[int]], draft_tokens: int, draws_DP: Draws) -> Floats:
    """Share of verify steps that accepted position 1 .. K and all before it, float [K, D].

    Args:
        accepted: accepted drafts of each verify step, by reply.
        draft_tokens: K.
    """
    steps_P = np.array([len(steps) for steps in accepted], float)
    hits_KP = np.array([[sum(n > j for n in steps) for steps in accepted] for j in range(draft_tokens)], float)
    return np.stack([pooled(hits_P, steps_P, draws_DP) for hits_P in hits_KP])


def expected_tokens(rates_KD: Floats, emitted_D: Floats) -> dict[int, Floats]:
    """Tokens of a step by draft length 0 to K, each [D].

    Args:
        rates_KD: acceptance by position at length K.
        emitted_D: tokens that a step of length K was seen to emit: a little less than 1 + the rates, because a reply
            may end within a step.
    """
    lengths_KD = 1 + np.cumsum(rates_KD, axis=0)
    seen_D = emitted_D / lengths_KD[-1]
    return {0: np.ones_like(emitted_D)} | {k + 1: length_D * seen_D for k, length_D in enumerate(lengths_KD)}


@dataclass(frozen=True)
class Choice:
    """The draft length with the highest decode rate, and what else it could be.

    Attributes:
        best: the length.
        not_told_apart: lengths whose rate, paired draw by draw, is not surely below the best one's.
        share_best: share of the draws in which each length is the best.
    """

    best: int
    not_told_apart: list[int]
    share_best: dict[int, float]


def choose(rates: Mapping[int, Floats], prompts: int) -> Choice:
    """The best of the decode rates [D] by draft length."""
    lengths = sorted(rates)
    table_kD = np.stack([rates[k] for k in lengths])
    best = lengths[int(np.argmax(table_kD[:, 0]))]
    winners_D = np.argmax(table_kD[:, 1:], axis=0)
    others = [k for k in lengths if k != best]
    close = [k for k in others if not _surely_below(interval(rates[k] / rates[best], prompts))]
    shares = {k: float(np.mean(winners_D == at)) for at, k in enumerate(lengths)}
    return Choice(best, close, shares)


def _surely_below(ratio: Interval) -> bool:
    return ratio.high is not None and ratio.high < 1


def request_speedup(base: Load, tokens_D: Floats, step_D: Floats, draws_DP: Draws) -> Floats:
    """Speed-up of whole requests [D]: the base's seconds over those of its prompts at another step and tokens a step.

    The time to the first token is the base's: what drafting adds to it is part of no step.
    """
    first_D, left_D = base.first_s_P[draws_DP].sum(axis=1), base.tokens_P[draws_DP].sum(axis=1)
    return (first_D + base.decode_s_P[draws_DP].sum(axis=1)) / (first_D + left_D / tokens_D * step_D)
