"""Whether tokens were drawn with the probabilities that they should have: the statistics of `lossless`.

A token drawn from a known distribution has a uniform rank: the summed probability of all likelier tokens, plus a random
part of its own (Rosenblatt 1952; randomised for discrete values). Ranks of successive tokens are independent whatever
they are conditioned on before, so replies of any length, of any prompt, can be pooled. Two questions are asked of each
kind of place in a verification step:

- `likeliest`: was the likeliest token sampled as often as its probability says? The count is Poisson-binomial; its
  exact tail is taken. Samplers that are too greedy, or not enough, differ here first.
- `ranks`: are the ranks uniform? A chi-square test over equal bins, of the positions that are not settled beforehand.

Both are asked of each draft of a step on its own, too: a fault may lie in one of them.
Bonferroni's bound over all questions keeps the false alarm rate below what is asked for, whatever their dependence.

Shape letters: N = sampled tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

SETTLED = 0.98  # a likeliest token above this leaves nothing to choose
PER_BIN, BINS_MAX = 8, 16  # the chi-square distribution needs expected counts of 5 and more
POWER = 0.9


@dataclass(frozen=True)
class Draws:
    """Sampled tokens, and what was known of them before.

    Attributes:
        top_N: probability of the likeliest token.
        hit_N: bool, whether it was sampled.
        rank_N: the sampled token's rank in [0, 1].
        place_N: place in a step (`sampling.places`): its kind, and a number where there are several.
    """

    top_N: Floats
    hit_N: NDArray[np.bool_]
    rank_N: Floats
    place_N: NDArray[np.str_]

    def at(self, place: str) -> "Draws":
        """Those of one place, or of one kind of place."""
        kept = (self.place_N == place) | np.char.startswith(self.place_N, f"{place} ")
        return Draws(self.top_N[kept], self.hit_N[kept], self.rank_N[kept], self.place_N[kept])

    @property
    def kinds(self) -> list[str]:
        """Kinds of places that occur."""
        return sorted({place.split()[0] for place in self.place_N.tolist()})

    @property
    def numbered(self) -> list[str]:
        """Places of kinds that have several."""
        found = sorted({place for place in self.place_N.tolist() if " " in place})
        return found if len(found) > 1 else []

    @property
    def open_ranks(self) -> Floats:
        """Ranks of the positions that were not settled beforehand."""
        return self.rank_N[self.top_N < SETTLED]

    def __len__(self) -> int:
        return len(self.top_N)


def joined(parts: Sequence[Draws]) -> Draws:
    """Several as one."""
    fields = ("top_N", "hit_N", "rank_N", "place_N")
    return Draws(*(np.concatenate([getattr(part, field) for part in parts]) for field in fields))


def ranks(above_N: Floats, own_N: Floats, random: np.random.Generator) -> Floats:
    """Randomised ranks, from the summed probability of all likelier tokens and the token's own."""
    return above_N + own_N * random.random(len(own_N))


def _likeliest_p(draws: Draws) -> float:
    """Two-sided: twice the smaller exact tail of the Poisson-binomial count."""
    count, found = stats.poisson_binom(draws.top_N.clip(0.0, 1.0)), int(draws.hit_N.sum())
    return float(min(1.0, 2 * min(count.cdf(found), count.sf(found - 1))))


def _ranks_p(rank_N: Floats) -> float:
    bins = min(BINS_MAX, len(rank_N) // PER_BIN)
    counts, _ = np.histogram(rank_N, bins=bins, range=(0.0, 1.0))
    return float(stats.chisquare(counts).pvalue)


def _detectable(draws: Draws, rate: float) -> float | None:
    """Shift of the likeliest token's share that `_likeliest_p` would find 9 times in 10; None if nothing is open."""
    spread = float(np.sqrt((draws.top_N * (1 - draws.top_N)).sum()))
    needed = float(stats.norm.ppf(1 - rate / 2) + stats.norm.ppf(POWER)) * spread / len(draws)
    return needed if float((1 - draws.top_N).mean()) > needed else None


@dataclass(frozen=True)
class Tests:
    """The answers to all questions; `p_value` is Bonferroni's over them."""

    answers: list[dict[str, Any]]

    @property
    def p_value(self) -> float:
        """Chance of a finding as strong as the strongest, were every token drawn as it should be."""
        return min(1.0, len(self.answers) * min((answer["p_value"] for answer in self.answers), default=1.0))

    @property
    def worst(self) -> dict[str, Any]:
        """The answer that speaks loudest."""
        return min(self.answers, key=lambda answer: answer["p_value"])


def against_truth(draws: Draws, rate: float) -> Tests:
    """One sample against the probabilities themselves, every kind of place on its own.

    Args:
        rate: false alarm rate, for the stated power.
    """
    answers = []
    kinds, numbered = draws.kinds, draws.numbered
    questions = 2 * len((*kinds, *numbered))
    for kind in (*kinds, *numbered):
        part = draws.at(kind)
        answers.append({
            "place": kind, "question": "likeliest", "positions": len(part), "p_value": _likeliest_p(part),
            "found_share": float(part.hit_N.mean()), "expected_share": float(part.top_N.mean()),
            "detectable_shift": _detectable(part, rate / questions),
        })  # fmt: skip
        if len(part.open_ranks) >= 2 * PER_BIN:
            found = {"place": kind, "question": "ranks", "positions": len(part.open_ranks)}
            answers.append(found | {"p_value": _ranks_p(part.open_ranks)})
    return Tests(answers)


def against_control(draws: Draws, control: Draws) -> Tests:
    """Two samples: each kind of place against the same verifier's ordinary sampler, asked the same way.

    What both share, such as a reference that rounds otherwise than the engine, cancels.
    """
    answers = []
    for kind in draws.kinds:
        part = draws.at(kind)
        excess, variance = zip(*((_excess(side), _variance(side)) for side in (part, control)), strict=True)
        spread = max(sum(variance) ** 0.5, 1e-12)
        p_value = float(2 * stats.norm.sf(abs(excess[0] - excess[1]) / spread))
        answers.append({"place": kind, "question": "likeliest", "positions": len(part), "p_value": p_value})
        if min(len(part.open_ranks), len(control.open_ranks)) >= 2 * PER_BIN:
            p_value = float(stats.ks_2samp(part.open_ranks, control.open_ranks).pvalue)
            answers.append({"place": kind, "question": "ranks", "positions": len(part.open_ranks), "p_value": p_value})
    return Tests(answers)


def _excess(draws: Draws) -> float:
    return float((draws.hit_N - draws.top_N).mean())


def _variance(draws: Draws) -> float:
    return float((draws.top_N * (1 - draws.top_N)).sum()) / len(draws) ** 2
