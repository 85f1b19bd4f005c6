"""Intervals of harness.evaluation.statistics: values worked by hand, coverage by simulation with a fixed seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.evaluation.statistics import (
    Interval,
    farthest_ratio,
    paired_difference,
    paired_ratio,
    pooled_gap,
    pooled_ratio,
    proportion,
    widened,
)

DRAWS = 400


def covered(intervals, truth):
    return np.mean([found.low <= truth <= found.high for found in intervals])


def test_wilson_interval_of_8_in_10_is_the_published_one():
    found = proportion(8, 10)
    assert found.value == 0.8
    assert (found.low, found.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def test_wilson_interval_has_a_width_when_every_trial_succeeds():
    found = proportion(40, 40)
    assert found.high == pytest.approx(1.0)
    assert found.low == pytest.approx(40 / (40 + 1.959964**2), abs=1e-6)


def test_a_proportion_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="0 trials"):
        proportion(0, 0)


def test_a_pooled_ratio_weighs_prompts_by_their_denominator():
    found = pooled_ratio([3, 0], [1, 9], DRAWS, seed=0, offset=1.0)
    assert found.value == pytest.approx(1.3)  # the mean of the prompts' own ratios would be 2.5
    assert found.low <= found.value <= found.high


@pytest.mark.parametrize("prompts", [8, 12])
def test_the_interval_of_few_prompts_is_not_too_narrow(prompts):
    generator, found = np.random.default_rng(8), []
    for _ in range(400):
        steps = np.full(prompts, 20)
        found.append(pooled_ratio(generator.binomial(steps, generator.beta(4, 4, prompts)), steps, DRAWS, seed=1))
    assert 0.93 <= covered(found, 0.5) <= 0.99  # plain percentiles: 0.90 and 0.91


def test_widening_reaches_both_ways_whatever_side_the_factor_is_on():
    ratio = Interval(1.5, 1.2, 1.8, 10)
    assert widened(ratio, 1.0) == ratio
    for factor in (1.25, 0.8):
        assert widened(ratio, factor) == Interval(1.5, pytest.approx(0.96), pytest.approx(2.25), 10)
    assert widened(Interval(1.5, None, None, 1), 2.0) == Interval(1.5, None, None, 1)
    with pytest.raises(ValueError, match="must be positive"):
        widened(ratio, 0.0)


def test_the_farthest_ratio_is_so_by_factor_on_either_side_of_1():
    assert farthest_ratio((2.0, 2.2), (2.0, 2.5)) == 1.25
    assert farthest_ratio((2.0, 2.5), (2.0, 2.2)) == 0.8


def test_a_pooled_ratio_of_one_prompt_has_no_interval():
    found = pooled_ratio([6], [4], DRAWS, seed=0, offset=1.0)
    assert (found.value, found.low, found.high, found.n) == (2.5, None, None, 1)


def test_prompts_without_drafts_do_not_spoil_the_interval():
    found = pooled_ratio([2, 0, 0], [4, 0, 0], DRAWS, seed=0)
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)


def test_a_pooled_ratio_over_nothing_is_an_error():
    with pytest.raises(ValueError, match="sum 0"):
        pooled_ratio([0, 0], [0, 0], DRAWS, seed=0)


def test_the_pooled_ratio_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(5)
    found = []
    for _ in range(200):
        skill = generator.beta(4, 4, size=40)  # prompts differ
        steps = generator.integers(10, 30, size=40)
        found.append(pooled_ratio(generator.binomial(steps, skill), steps, DRAWS, seed=1))
    assert 0.90 <= covered(found, 0.5) <= 0.99


def test_the_paired_difference_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(6)
    found = []
    for _ in range(400):
        kind = generator.choice(4, size=40, p=[0.55, 0.30, 0.10, 0.05])  # both right, both wrong, lost, won
        base = {str(i): float(k in (0, 2)) for i, k in enumerate(kind)}
        variant = {str(i): float(k in (0, 3)) for i, k in enumerate(kind)}
        found.append(paired_difference(base, variant))
    assert 0.93 <= covered(found, -0.05) <= 0.995


def test_a_paired_difference_worked_by_hand():
    base = {"a": 1, "b": 1, "c": 0, "d": 0, "only base": 1}
    variant = {"a": 1, "b": 0, "c": 0, "d": 0, "only variant": 1}
    found = paired_difference(base, variant)
    # won 0, lost 1, n 4: centre -1/6, half 1.96 * sqrt((2/6 - 1/36) / 6)
    half = 1.959964 * ((2 / 6 - 1 / 36) / 6) ** 0.5
    assert (found.value, found.n) == (-0.25, 4)
    assert (found.low, found.high) == pytest.approx((-1 / 6 - half, -1 / 6 + half), abs=1e-6)


def test_equal_scores_still_leave_the_difference_uncertain():
    same = {str(i): 1.0 for i in range(10)}
    found = paired_difference(same, same)
    assert found.value == 0
    assert found.low < 0 < found.high


@pytest.mark.parametrize(("base", "variant"), [({"a": 1}, {"b": 1}), ({"a": 0.5}, {"a": 1})])
def test_a_paired_difference_refuses_what_it_cannot_pair(base, variant):
    with pytest.raises(ValueError, match="0 or 1"):
        paired_difference(base, variant)


def records(tokens, seconds):
    return [
        {"id": str(i), "output_tokens": t, "latency_s": s} for i, (t, s) in enumerate(zip(tokens, seconds, strict=True))
    ]


def test_a_speedup_compares_the_same_prompts_only():
    base = records([10, 10, 10], [1.0, 1.0, 10.0])
    variant = records([10, 20], [0.5, 1.0])
    found = paired_ratio(base, variant, DRAWS)
    assert (found.value, found.n) == (2.0, 2)  # 30 / 1.5 over 20 / 2; the base's slow third prompt has no partner
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(2.0)


def test_a_speedup_without_a_common_prompt_is_an_error():
    with pytest.raises(ValueError, match="no prompt in common"):
        paired_ratio(records([1], [1.0]), [], DRAWS)


def test_the_speedup_interval_covers_the_truth_and_pairing_keeps_it_narrow():
    generator = np.random.default_rng(7)
    found = []
    for _ in range(200):
        hard = generator.lognormal(0, 0.8, size=20)  # prompts differ much more than the two runs do
        noise = [generator.lognormal(0, 0.05, size=20) for _ in range(2)]
        base, variant = records([50] * 20, hard * noise[0]), records([50] * 20, hard * noise[1] / 1.5)
        found.append(paired_ratio(base, variant, DRAWS, seed=2))
    assert 0.88 <= covered(found, 1.5) <= 0.99
    assert np.median([one.high - one.low for one in found]) < 0.15


def test_a_gap_of_equal_sides_is_zero_and_a_shifted_side_is_outside():
    steps, accepted = [10] * 30, [5, 6, 4] * 10
    same = pooled_gap((accepted, steps), (accepted, steps), DRAWS, seed=0)
    assert (same.value, same.low, same.high) == (0, 0, 0)
    worse = pooled_gap((accepted, steps), ([a - 2 for a in accepted], steps), DRAWS, seed=0)
    assert worse.value == pytest.approx(0.2)
    assert worse.low > 0


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=2, max_size=8), st.integers(0, 100))
def test_a_bootstrap_is_repeatable_and_brackets_its_extremes(pairs, seed):
    top, bottom = zip(*pairs, strict=True)
    found = pooled_ratio(top, bottom, 100, seed)
    assert found == pooled_ratio(top, bottom, 100, seed)
    ratios = [a / b for a, b in pairs]
    assert min(ratios) - 1e-9 <= found.low <= found.high <= max(ratios) + 1e-9
