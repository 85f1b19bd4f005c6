"""Whether tokens were drawn with the probabilities that they should have: the statistics of `lossless`.

A token drawn from a known distribution has a uniform rank: the summed probability of all likelier tokens, plus a random
part of its own (Rosenblatt 1952; randomised for discrete values). Ranks of successive tokens are independent whatever
they are conditioned on before, so replies of any length, of any prompt, can be pooled. Three questions are asked:

- `likeliest`: was the likeliest token sampled as often as its probability says? A place where it had probability p
  counts about 1/p times, as the likelihood ratio against "now and then it is taken instead" would have it: where it is
  nearly certain, its coming says little. The exact tail of the count is taken.
- `order`: do unlikely tokens come as often as they should? The mean rank, of which settled places tell less. It
  sees another temperature, or a tail that is cut.
- `ranks`: are the ranks uniform? A chi-square test over equal bins, of the places that are not settled beforehand.

They are asked of all tokens together, of each kind of place in a verification step, and of each draft of a step on its
own: a fault may lie in one of them. Bonferroni's bound keeps the false alarm rate below what is asked for, whatever
their dependence; each of the three has a third of it, so that many kinds of places do not blind the first.

Shape letters: N = sampled tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

ALL = "all"
SETTLED = 0.98  # a likeliest token above this leaves nothing to choose
WEIGHT_MAX = 4  # a place counts at most 2 to the power of this
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
        if place == ALL:
            return self
        kept = (self.place_N == place) | np.char.startswith(self.place_N, f"{place} ")
        return Draws(self.top_N[kept], self.hit_N[kept], self.rank_N[kept], self.place_N[kept])

    @property
    def kinds(self) -> list[str]:
        """Kinds of places that occur."""
        return sorted({place.split()[0] for place in self.place_N.tolist()})

    @property
    def places(self) -> list[list[str]]:
        """What is asked about: all tokens, kinds of places, and places of kinds that have several."""
        numbered = sorted({place for place in self.place_N.tolist() if " " in place})
        return [*([[ALL]] if len(self.kinds) > 1 else []), self.kinds, *([numbered] if len(numbered) > 1 else [])]

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


def _weights(top_N: Floats) -> NDArray[np.int64]:
    """1/p to the nearest power of 2: whole numbers, so that the count has a distribution that can be written down."""
    return 2 ** np.rint(-np.log2(top_N)).clip(0, WEIGHT_MAX).astype(np.int64)


def _likeliest_p(draws: Draws) -> float:
    """Two-sided: twice the smaller exact tail of the weighted count."""
    weight_N = _weights(draws.top_N)
    found, chance = int(weight_N[draws.hit_N].sum()), np.zeros(weight_N.sum() + 1)
    chance[0], reach = 1.0, 1
    for top, weight in zip(draws.top_N.clip(0.0, 1.0).tolist(), weight_N.tolist(), strict=True):
        shifted = top * chance[:reach]
        chance[:reach] *= 1 - top
        chance[weight : weight + reach] += shifted
        reach += weight
    return float(min(1.0, 2 * min(chance[: found + 1].sum(), chance[found:].sum())))


def _order_p(draws: Draws) -> float:
    """Two-sided. A sum of uniforms has lighter tails than the normal distribution that stands for it here."""
    weight_N = np.sqrt((1 - draws.top_N).clip(0.0))
    spread = float(np.sqrt(np.square(weight_N).sum() / 12))
    return float(2 * stats.norm.sf(abs(weight_N @ (draws.rank_N - 0.5)) / max(spread, 1e-12)))


def _ranks_p(rank_N: Floats) -> float:
    bins = min(BINS_MAX, len(rank_N) // PER_BIN)
    counts, _ = np.histogram(rank_N, bins=bins, range=(0.0, 1.0))
    return float(stats.chisquare(counts).pvalue)


def detectable_bias(top_N: Floats, rate: float) -> float | None:
    """Share of tokens that `likeliest` would find 9 times in 10, were the likeliest one taken in their stead.

    Args:
        top_N: probability of the likeliest token.
        rate: false alarm rate of the question.

    Returns:
        None where even the likeliest token always would not be found.
    """
    weight_N = _weights(top_N)
    gained = float(weight_N @ (1 - top_N))
    needed = float(stats.norm.ppf(1 - rate / 2) + stats.norm.ppf(POWER))
    spread = float(np.sqrt((weight_N**2 * top_N * (1 - top_N)).sum()))
    return needed * spread / gained if needed * spread < gained else None


@dataclass(frozen=True)
class Tests:
    """The answers to all questions, each with its `share` of the false alarms; `p_value` is Bonferroni's over them."""

    answers: list[dict[str, Any]]

    @property
    def p_value(self) -> float:
        """Chance of a finding as strong as the strongest, were every token drawn as it should be."""
        return min(1.0, _weighed(self.worst)) if self.answers else 1.0

    @property
    def worst(self) -> dict[str, Any]:
        """The answer that speaks loudest."""
        return min(self.answers, key=_weighed)


def _weighed(answer: dict[str, Any]) -> float:
    return float(answer["p_value"] / answer["share"])


def against_truth(draws: Draws, rate: float) -> Tests:
    """One sample against the probabilities themselves, every kind of place on its own.

    Args:
        rate: false alarm rate, for the stated power.
    """
    tiers = draws.places
    return Tests([
        answer
        for tier in tiers for place in tier
        for answer in _answers(draws.at(place), place, 1 / len(tiers) / len(tier), rate)
    ])  # fmt: skip


def _answers(part: Draws, place: str, share: float, rate: float) -> list[dict[str, Any]]:
    """What is known of one place, which may raise `share` of the false alarms."""
    found: dict[str, float] = {"likeliest": _likeliest_p(part), "order": _order_p(part)}
    if len(part.open_ranks) >= 2 * PER_BIN:
        found["ranks"] = _ranks_p(part.open_ranks)
    each = share / len(found)
    bias = detectable_bias(part.top_N, rate * each)
    told: dict[str, dict[str, Any]] = {
        "likeliest": {
            "found_share": float(part.hit_N.mean()), "expected_share": float(part.top_N.mean()),
            "detectable_bias": bias,
        },
        "ranks": {"positions": len(part.open_ranks)},
    }  # fmt: skip
    return [
        {"place": place, "question": question, "positions": len(part), "p_value": p_value, "share": each}
        | told.get(question, {})
        for question, p_value in found.items()
    ]


def against_control(draws: Draws, control: Draws) -> Tests:
    """Two samples: each kind of place against the same verifier's ordinary sampler, asked the same way.

    What both share, such as a reference that rounds otherwise than the engine, cancels.
    """
    answers: list[dict[str, Any]] = []
    for kind in draws.kinds:
        part = draws.at(kind)
        excess, variance = zip(*((_excess(side), _variance(side)) for side in (part, control)), strict=True)
        spread = max(sum(variance) ** 0.5, 1e-12)
        p_value = float(2 * stats.norm.sf(abs(excess[0] - excess[1]) / spread))
        answers.append({"place": kind, "question": "likeliest", "positions": len(part), "p_value": p_value})
        if min(len(part.open_ranks), len(control.open_ranks)) >= 2 * PER_BIN:
            p_value = float(stats.ks_2samp(part.open_ranks, control.open_ranks).pvalue)
            answers.append({"place": kind, "question": "ranks", "positions": len(part.open_ranks), "p_value": p_value})
    return Tests([answer | {"share": 1 / len(answers)} for answer in answers])


def _excess(draws: Draws) -> float:
    return float((draws.hit_N - draws.top_N).mean())


def _variance(draws: Draws) -> float:
    return float((draws.top_N * (1 - draws.top_N)).sum()) / len(draws) ** 2
