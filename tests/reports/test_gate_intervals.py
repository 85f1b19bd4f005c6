"""Changes between two runs, paired by prompt: values worked by hand, and intervals that hold what they promise."""

import numpy as np
import pytest

from reports.gate_intervals import ratio_change, share_change, speedup_change


def test_a_change_of_a_ratio_is_worked_by_hand():
    # Three prompts of 4 steps. Alone they change by -1/4, -2/4 and +1/4; in pairs by -3/8, 0 and -1/8; all by -2/12.
    change = ratio_change(([1, 2, 3], [4, 4, 4]), ([0, 0, 4], [4, 4, 4]), 0.5)
    assert (change.before, change.after, change.n) == (0.5, 1 / 3, 3)
    assert change.change == pytest.approx(-1 / 6)
    # Of 8 subsets the empty one may lie anywhere; of the others two lie at or below -3/8, two at or above 0.
    assert (change.low, change.high) == pytest.approx((-3 / 8, 0))


def test_equal_runs_leave_no_doubt():
    side = ([3, 1, 0, 7], [9, 9, 9, 9])
    change = ratio_change(side, side, 0.999)
    assert (change.change, change.low, change.high) == (0, 0, 0)


@pytest.mark.parametrize(("prompts", "sure"), [(6, False), (9, True)])
def test_it_takes_so_many_prompts_that_all_lost_to_be_sure(prompts: int, sure: bool):
    """Nine heads in a row have the chance 1/512, six have 1/64: only the first is below 1 in 200."""
    drafts = [20.0] * prompts
    change = ratio_change(([10.0] * prompts, drafts), ([9.0 - n % 2 for n in range(prompts)], drafts), 0.99)
    assert (change.high is not None and change.high < 0) == sure


def test_a_common_loss_is_sure_where_the_prompts_themselves_differ_much():
    drafts = [20, 22, 24, 30, 40, 44, 45, 46]
    accepted = [40, 36, 33, 28, 10, 6, 4, 3]
    paired = ratio_change((accepted, drafts), ([0.9 * each for each in accepted], drafts), 0.98)
    assert paired.high < 0, "each prompt lost a tenth"


def test_one_prompt_gives_a_value_without_an_interval():
    change = ratio_change(([1], [2]), ([2], [2]), 0.95)
    assert (change.change, change.low, change.high) == (0.5, None, None)


@pytest.mark.parametrize("side", [([], []), ([0.0], [0.0])])
def test_a_ratio_without_denominators_is_refused(side):
    with pytest.raises(ValueError, match="denominators must sum to more than 0"):
        ratio_change(side, side, 0.95)


def test_a_95_percent_interval_of_16_noisy_prompts_holds_the_true_change():
    dice, held = np.random.default_rng(3), 0
    for _ in range(400):
        drafts, chance = dice.integers(20, 50, 16), dice.uniform(0.1, 0.9, 16)
        sides = [(dice.binomial(drafts, chance), drafts) for _ in range(2)]
        change = ratio_change(*sides, 0.95)
        held += change.low <= 0 <= change.high
    assert 0.92 <= held / 400 <= 0.98


def test_a_speed_up_that_halves_is_a_change_of_minus_one_half():
    before = [[10, 20], [1, 2], [10, 20], [2, 4]]
    after = [[10, 20], [2, 4], [10, 20], [2, 4]]
    change = speedup_change(before, after, 0.95)
    assert (change.before, change.after, change.change) == pytest.approx((2.0, 1.0, -0.5))
    assert (change.low, change.high) == pytest.approx((-0.5, -0.5)), "every prompt halved"


def test_a_slow_minute_that_hits_variant_and_base_alike_is_no_change():
    before = [[10, 20], [1, 2], [10, 20], [2, 4]]
    after = [[10, 20], [3, 6], [10, 20], [6, 12]]
    assert speedup_change(before, after, 0.95).change == pytest.approx(0)


def test_a_share_changes_by_the_pairs_that_differ():
    before = {"a": 1, "b": 1, "c": 0, "gone": 0}
    change = share_change(before, {"a": 1, "b": 0, "c": 0, "new": 1}, 0.95)
    assert (change.before, change.after, change.change, change.n) == pytest.approx((2 / 3, 1 / 3, -1 / 3, 3))
    assert change.low < -1 / 3 < 0 < change.high


def test_shares_without_a_common_problem_are_refused():
    with pytest.raises(ValueError, match="none in common"):
        share_change({"a": 1}, {"b": 1}, 0.95)
