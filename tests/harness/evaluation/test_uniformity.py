"""The statistics of losslessness: a right sampler passes at the stated rate, planted faults are caught."""

import numpy as np
import pytest
from scipy import stats

from harness.evaluation.uniformity import Draws, against_control, against_truth, ranks
from tests.harness.evaluation.sampler import FAULTS, World, simulate

RATE = 0.001
WORLD = World(draft_noise=0.5)


def alarms(runs, rate):
    return sum(against_truth(draws, rate).p_value < rate for draws in runs)


def most(rate, runs):
    """What a true rate can give by chance, but for once in a thousand times."""
    return stats.binom.ppf(0.999, runs, rate)


def test_a_right_sampler_fails_no_more_often_than_stated():
    p_values = [against_truth(draws, RATE).p_value for draws in simulate(WORLD, None, 150, replies=16)]
    for rate in (0.2, 0.05, 0.01):
        assert sum(p < rate for p in p_values) <= most(rate, len(p_values))


@pytest.mark.slow
def test_a_right_sampler_fails_once_in_a_thousand_runs_at_most():
    runs = simulate(WORLD, None, 3000, replies=16)
    p_values = np.array([against_truth(draws, RATE).p_value for draws in runs])
    assert (p_values < RATE).sum() <= most(RATE, len(runs))
    assert (p_values < 0.05).mean() >= 0.01, "Bonferroni's bound must not make the test blind"


# Share of runs in which each fault is found: (replies of 32 tokens, share). 64 replies are the default.
POWER = {
    "accepts every draft": (64, 0.95),
    "accepts where the draft is the likeliest token": (64, 0.95),
    "accepts the last draft of a step": (64, 0.95),
    "resamples from the whole distribution": (64, 0.95),
    "leaves the residual as it is": (64, 0.95),
    "takes the likeliest token as the bonus": (64, 0.95),
    "draws the bonus at temperature 1": (256, 0.4),
    "takes the likeliest token 5% too often": (256, 0.5),
}


def caught(fault, runs):
    """The tests of all runs, once enough of them have found the fault."""
    replies, power = POWER[fault]
    found = [against_truth(draws, RATE) for draws in simulate(WORLD, fault, runs, replies)]
    alarming = [tests for tests in found if tests.p_value < RATE]
    assert len(alarming) >= stats.binom.ppf(0.001, runs, power)
    return alarming


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if POWER[fault][1] > 0.9])
def test_a_planted_fault_is_caught(fault):
    alarming = caught(fault, 6)
    where = {"the bonus": "bonus", "last draft": "draft 3"}
    for word, place in where.items():
        found = {tests.worst["place"] for tests in alarming}
        assert word not in fault or found == {place}, "a fault is found at the place where it is"


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught_as_often_as_stated(fault):
    caught(fault, 20)


@pytest.mark.slow
def test_the_stated_shift_is_found_nine_times_in_ten():
    runs = simulate(WORLD, "takes the likeliest token 5% too often", 12, 128)
    answers = [next(a for a in against_truth(draws, RATE).answers if a["place"] == "draft") for draws in runs]
    stated = np.mean([answer["detectable_shift"] for answer in answers])
    shifts = [answer["found_share"] - answer["expected_share"] for answer in answers]
    found = np.mean([answer["p_value"] < RATE / 9 for answer in answers])
    assert (found >= 0.8) == (np.mean(shifts) >= 0.9 * stated)


def test_a_reference_that_rounds_otherwise_than_both_servers_is_no_fault_of_the_draft():
    """A control that fails as well: the two are alike, and the paired test says so; a fault still shows in it."""
    engine = World(sharpness=2.6)

    def seen(draws):  # the reference believes in flatter distributions than both servers draw from
        return Draws(draws.top_N * 0.88, draws.hit_N, draws.rank_N**1.2, draws.place_N)

    control = [seen(Draws(d.top_N, d.hit_N, d.rank_N, np.full(len(d), "plain"))) for d in simulate(engine, None, 12)]
    right = [seen(draws) for draws in simulate(engine, None, 12, seed=2)]
    wrong = [seen(draws) for draws in simulate(engine, "accepts every draft", 12, seed=3)]
    assert alarms(control, RATE) == 12 and alarms(right, RATE) > 6
    p_right, p_wrong = (
        [against_control(*pair).p_value for pair in zip(draws, control, strict=True)] for draws in (right, wrong)
    )
    assert sum(p < 0.02 for p in p_right) <= most(0.02, 12)
    assert max(p_wrong) < 0.02 and sum(p < RATE for p in p_wrong) > 4


def test_ranks_by_hand():
    class Half:
        def random(self, count):
            return np.full(count, 0.5)

    found = ranks(np.array([0.0, 0.6, 0.9]), np.array([0.6, 0.3, 0.1]), Half())
    assert found == pytest.approx([0.3, 0.75, 0.95])


def test_the_count_of_likeliest_tokens_by_hand():
    """Four tosses of a fair coin, all heads: 1 in 16 on one side, 1 in 8 on both."""
    draws = Draws(np.full(4, 0.5), np.full(4, True), np.full(4, 0.1), np.full(4, "plain"))
    tests = against_truth(draws, RATE)
    assert [answer["question"] for answer in tests.answers] == ["likeliest"], "too few ranks for a chi-square"
    assert tests.p_value == pytest.approx(0.125)
    assert tests.worst["found_share"] == 1.0 and tests.worst["detectable_shift"] is None


def test_a_token_that_cannot_be_is_caught_where_all_is_settled():
    top = np.full(300, 0.9999)
    hit = np.full(300, True)
    hit[:6] = False
    draws = Draws(top, hit, np.where(hit, 0.5, 0.99999), np.full(300, "draft"))
    assert against_truth(draws, RATE).p_value < RATE
