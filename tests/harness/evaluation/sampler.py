"""Rejection samplers over made-up distributions, right and with planted faults, for the tests of the statistics.

Many runs are drawn at once. A position's distribution is picked at random and known before its token is drawn, as a
verifier's is; drafts are greedy guesses of a draft that knows the logits with some noise.

Shape letters: C = distributions, V = tokens, B = replies of all runs together, N = tokens of one run.
"""

import numpy as np

from harness.evaluation.uniformity import Draws, ranks

TEMPERATURE = 1.3
CONTEXTS, VOCABULARY = 500, 20
FAULTS = (
    "accepts every draft",
    "accepts where the draft is the likeliest token",
    "accepts the last draft of a step",
    "resamples from the whole distribution",
    "leaves the residual as it is",
    "takes the likeliest token as the bonus",
    "draws the bonus at temperature 1",
    "takes the likeliest token instead now and then",
)


def _softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


class World:
    """Distributions of a verifier, some nearly settled, some wide open, and a draft's guesses."""

    def __init__(self, seed=0, sharpness=2.2, draft_noise=1.0):
        random = np.random.default_rng(seed)
        logits_CV = random.gumbel(size=(CONTEXTS, VOCABULARY)) * random.uniform(0.5, sharpness, (CONTEXTS, 1))
        self.chance_CV = _softmax(logits_CV / TEMPERATURE)
        self.plain_CV = _softmax(logits_CV)
        self.draft_C = (logits_CV + draft_noise * random.normal(size=logits_CV.shape)).argmax(axis=1)
        self.likeliest_C = self.chance_CV.argmax(axis=1)


def _choose(chance_BV, random):
    """One token of each row; what a row lacks in mass falls to the last token."""
    drawn_B1 = random.random((len(chance_BV), 1))
    return (chance_BV.cumsum(axis=1) < drawn_B1).sum(axis=1).clip(max=VOCABULARY - 1)


def _token(world, context_B, slot_B, drafts, fault, random, bias):
    """(token, whether a draft was accepted) of every reply at its own place in a step."""
    chance_BV, draft_B, best_B = world.chance_CV[context_B], world.draft_C[context_B], world.likeliest_C[context_B]
    rows_B, drafting_B, bonus_B = np.arange(len(context_B)), (slot_B >= 0) & (slot_B < drafts), slot_B == drafts
    accepted_B = drafting_B & (random.random(len(rows_B)) < chance_BV[rows_B, draft_B])
    if fault == "accepts every draft":
        accepted_B = drafting_B
    if fault == "accepts where the draft is the likeliest token":
        accepted_B = drafting_B & (draft_B == best_B)
    if fault == "accepts the last draft of a step":
        accepted_B |= slot_B == drafts - 1
    used_BV = chance_BV.copy()
    if fault != "resamples from the whole distribution":
        used_BV[rows_B[drafting_B], draft_B[drafting_B]] = 0.0
    if fault == "draws the bonus at temperature 1":
        used_BV[bonus_B] = world.plain_CV[context_B[bonus_B]]
    if fault != "leaves the residual as it is":
        used_BV /= used_BV.sum(axis=1, keepdims=True)
    token_B = np.where(accepted_B, draft_B, _choose(used_BV, random))
    if fault == "takes the likeliest token as the bonus":
        token_B = np.where(bonus_B, best_B, token_B)
    if fault == "takes the likeliest token instead now and then":
        token_B = np.where(random.random(len(rows_B)) < bias, best_B, token_B)
    return token_B, accepted_B


def simulate(world, fault, runs, replies=64, tokens=32, drafts=3, seed=1, bias=0.05):
    """`Draws` of every run: what `lossless` makes of its samples. `bias`: how often the likeliest token is taken."""
    random, count = np.random.default_rng(seed), runs * replies
    slot_B, steps = np.full(count, -1), []
    for _ in range(tokens):
        context_B = random.integers(CONTEXTS, size=count)
        token_B, accepted_B = _token(world, context_B, slot_B, drafts, fault, random, bias)
        chance_BV = world.chance_CV[context_B]
        own_B = chance_BV[np.arange(count), token_B]
        above_B = np.where(chance_BV > own_B[:, None], chance_BV, 0.0).sum(axis=1)
        place_B = np.array(["plain", *(f"draft {j + 1}" for j in range(drafts)), "bonus"])[slot_B + 1]
        top_B, hit_B = chance_BV.max(axis=1), token_B == world.likeliest_C[context_B]
        steps.append((top_B, hit_B, ranks(above_B, own_B, random), place_B))
        slot_B = np.where(accepted_B, slot_B + 1, 0)
    columns = [np.stack(column, axis=1).reshape(runs, -1) for column in zip(*steps, strict=True)]
    return [Draws(*(column[run] for column in columns)) for run in range(runs)]
