"""Runs simulated from the acceptance of a real one, prompt by prompt: what the gate must catch, and must not.

What is simulated, and what is not:

- **Served again.** Prompts and draft are the same. Most replies come out with the very steps of before. In a share of
  them rounding moved something: `MOVED_STEPS` of their steps are drawn anew from the reply's own.
- **Retrained.** All replies get steps drawn anew, and the whole draft is a little better or worse than before: accepted
  tokens per step change by a random factor, the training's noise.
- **A planted loss**: in one step of ten the draft is of no use, so that accepted tokens per step fall by 10%.

A reply is as long as before in every case: greedy replies are the verifier's, whatever is drafted. With less accepted
it takes more steps.
"""

from collections.abc import Sequence

import numpy as np

from reports.baseline import Snapshot, Variant

Dice = np.random.Generator
MOVED_STEPS = 2


def shifted(chance_K: np.ndarray, factor: float) -> np.ndarray:
    """The chances of accepting 0, 1, ... K drafts, with a mean that is 1 + `factor` times as large."""
    if factor <= 0:
        return (1 + factor) * chance_K - factor * (np.arange(len(chance_K)) == 0)
    some = 1 - chance_K[0]
    if some in (0.0, 1.0):
        return chance_K
    weight = min(factor / (1 / some - 1), 1.0)
    accepting = np.where(np.arange(len(chance_K)) > 0, chance_K / some, 0.0)
    return (1 - weight) * chance_K + weight * accepting


def again(histogram: Sequence[int], factor: float, moved: int | None, dice: Dice) -> list[int]:
    """One reply's verify steps in a new run, as a histogram like `histogram`.

    Args:
        histogram: how many of its steps accepted 0, 1, ... K drafts.
        factor: relative change of accepted tokens per step; not above 0 unless all steps are drawn anew.
        moved: so many steps of before are drawn anew; None for all.
        dice: random numbers.
    """
    counts = np.asarray(histogram)
    kinds = np.arange(len(counts))
    tokens = int(((kinds + 1) * counts).sum())
    if not tokens:
        return list(histogram)
    drawn = dice.choice(kinds, size=tokens, p=shifted(counts / counts.sum(), factor))
    if moved is not None:
        kept = dice.permutation(np.repeat(kinds, counts))[moved:]
        drawn = np.concatenate([np.where(dice.random(len(kept)) < -factor, 0, kept), drawn])
    steps = int(np.searchsorted(np.cumsum(drawn + 1), tokens)) + 1
    return np.bincount(drawn[:steps], minlength=len(counts)).tolist()


def served_again(run: Snapshot, changed: float, losing: str, loss: float, dice: Dice) -> Snapshot:
    """`run` with the same drafts; a share `changed` of all replies moved; `losing` lost `loss` of its acceptance."""
    variants = {
        name: _again(variant, -loss if name == losing else 0.0, changed, dice) for name, variant in run.variants.items()
    }
    return run.model_copy(update={"variants": variants})


def retrained(run: Snapshot, noise: float, losing: str, loss: float, dice: Dice) -> Snapshot:
    """`run` with drafts of another training, each better or worse by `noise` (a standard deviation)."""
    variants = dict(run.variants)
    for name, variant in run.variants.items():
        if variant.draft_sha256 is None:
            continue
        own_loss = loss if name == losing else 0.0
        factor = (1 - own_loss) * (1 + dice.normal(0.0, noise)) - 1
        new = _again(variant, factor, None, dice)
        variants[name] = new.model_copy(update={"draft_sha256": "retrained"})
    return run.model_copy(update={"variants": variants})


def _again(variant: Variant, factor: float, changed: float | None, dice: Dice) -> Variant:
    def moved() -> int | None:
        return None if changed is None else MOVED_STEPS * int(dice.random() < changed)

    steps = {
        source: {key: again(old, factor, moved(), dice) for key, old in prompts.items()}
        for source, prompts in variant.steps.items()
    }
    return variant.model_copy(update={"steps": steps})


def smaller(run: Snapshot, prompts: int) -> Snapshot:
    """The run with the first `prompts` of each benchmark: the size of a smoke run."""
    variants = {}
    for name, variant in run.variants.items():
        steps = {source: dict(sorted(kept.items())[:prompts]) for source, kept in variant.steps.items()}
        variants[name] = variant.model_copy(update={"steps": steps})
    return run.model_copy(update={"variants": variants})
