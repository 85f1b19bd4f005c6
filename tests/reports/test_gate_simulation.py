"""What the gate catches and what it lets pass, in simulated runs at the size of a smoke run. See `simulation.py`.

The data is the acceptance of the full run of `smollm2_135m` that is kept as its baseline, cut to as many prompts as the
smoke run has. How many replies move when the same draft is served by other code was measured in that run: transformers
against vLLM, 106 of 400 replies of five drafts had other steps; in those of EAGLE-3 at most two accepted tokens more or
less, as many as two steps drawn anew give.
"""

import functools

import numpy as np
import pytest

from harness.config import load_reproduction
from reports.baseline import Snapshot, read_baseline
from reports.gate_verdicts import REGRESSION, judge, outcome
from tests.guards.sources import ROOT
from tests.reports.simulation import again, retrained, served_again, shifted, smaller

BASELINE = ROOT / "reports/published/smollm2_135m.baseline.json"
MOVED_SHARE = 0.26
LOSS = 0.1


@functools.cache
def smoke_size() -> Snapshot:
    recipe = load_reproduction("smollm2_135m", "smoke", ROOT / "reproductions")
    prompts = min(source.rows for source in recipe.data.heldout if not source.optional)
    return smaller(read_baseline(BASELINE).run, prompts)


DRAFTS = [name for name, variant in read_baseline(BASELINE).run.variants.items() if variant.draft_sha256]


def caught(draft: str, runs: int, seed: int) -> int:
    """In how many of `runs` runs a loss planted in `draft` is a regression of that draft."""
    dice, before = np.random.default_rng(seed), smoke_size()
    alone = before.model_copy(update={"variants": {draft: before.variants[draft]}})
    found = 0
    for _ in range(runs):
        lost = served_again(alone, MOVED_SHARE, draft, LOSS, dice).variants[draft]
        verdicts = judge(before, before.model_copy(update={"variants": before.variants | {draft: lost}}))
        found += any(each.variant == draft and each.verdict == REGRESSION for each in verdicts)
    return found


def false_alarms(runs: int, seed: int) -> int:
    """In how many of `runs` runs in which nothing was lost the gate finds a regression."""
    dice, before = np.random.default_rng(seed), smoke_size()
    return sum(
        outcome(judge(before, served_again(before, MOVED_SHARE, "", 0.0, dice))) == REGRESSION for _ in range(runs)
    )


def test_a_planted_loss_of_10_percent_is_caught():
    assert sum(caught(draft, 4, seed) for seed, draft in enumerate(DRAFTS)) >= 0.95 * 4 * len(DRAFTS)


def test_nothing_lost_raises_no_alarm():
    assert false_alarms(5, 1) == 0


@pytest.mark.slow
@pytest.mark.parametrize("draft", DRAFTS)
def test_a_planted_loss_of_10_percent_is_caught_in_95_of_100_runs(draft: str):
    assert caught(draft, 100, 2) >= 95


@pytest.mark.slow
def test_at_most_one_run_in_100_raises_a_false_alarm():
    assert false_alarms(100, 3) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "least", "most"), [(0.0, 0, 0), (0.2, 0.9, 1.0)])
def test_a_retrained_draft_shows_a_large_loss_at_the_size_of_the_full_run(loss: float, least: float, most: float):
    dice, before, found, runs = np.random.default_rng(6), read_baseline(BASELINE).run, 0, 30
    for run in range(runs):
        draft = DRAFTS[run % len(DRAFTS)]
        alone = before.model_copy(update={"variants": {draft: before.variants[draft]}})
        new = retrained(alone, 0.02, draft, loss, dice).variants
        verdicts = judge(before, before.model_copy(update={"variants": before.variants | new}))
        found += outcome(verdicts) == REGRESSION
    assert least * runs <= found <= most * runs


def test_a_simulated_reply_is_as_long_as_before_and_accepts_what_it_should():
    dice, histogram = np.random.default_rng(4), [400, 300, 200, 100]
    tokens = sum((number + 1) * count for number, count in enumerate(histogram))

    def rate(steps: list[int]) -> float:
        return sum(number * count for number, count in enumerate(steps)) / sum(steps)

    assert again(histogram, 0.0, 0, dice) == histogram
    for factor in (-0.1, 0.0, 0.1):
        steps = again(histogram, factor, None, dice)
        assert tokens <= sum((number + 1) * count for number, count in enumerate(steps)) < tokens + 4
        assert rate(steps) == pytest.approx((1 + factor) * 1.0, abs=0.08)
    lost = [rate(again(histogram, -0.1, 2, dice)) for _ in range(50)]
    assert np.mean(lost) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("factor", [-0.3, 0.0, 0.2])
def test_shifted_chances_have_the_mean_that_was_asked_for(factor: float):
    chance_K = np.array([0.5, 0.2, 0.2, 0.1])
    found = shifted(chance_K, factor)
    assert found.sum() == pytest.approx(1) and (found >= 0).all()
    assert found @ np.arange(4) == pytest.approx((1 + factor) * (chance_K @ np.arange(4)))


def test_a_retrained_draft_is_known_as_one():
    after = retrained(smoke_size(), 0.0, "", 0.0, np.random.default_rng(5))
    notes = {(each.variant, each.note) for each in judge(smoke_size(), after) if each.metric == "acceptance_length"}
    assert notes == {("ngram", ""), *((draft, "retrained draft") for draft in DRAFTS)}


def test_the_page_says_the_size_that_is_simulated():
    sizes = {len(prompts) for variant in smoke_size().variants.values() for prompts in variant.steps.values()}
    assert len(sizes) == 1
    size = sizes.pop()
    assert f"{size} + {size} prompts" in (ROOT / "docs/gate.md").read_text()
