"""The speed model, worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.evaluation import speed_model as model

ONE = np.array([[0, 1]])  # the sample itself, of two prompts
BOTH = np.array([[0, 1], [0, 0]])  # the sample, and a draw that takes its first prompt twice


def load(tokens=(10, 10), steps=(10, 10), first_s=(0.1, 0.1), decode_s=(1.0, 1.0)):
    return model.Load(*(np.array(each, float) for each in (tokens, steps, first_s, decode_s)))


def constant(value):
    return np.full(3, float(value))


def test_a_step_costs_all_seconds_over_all_steps_and_not_the_mean_of_the_prompts():
    # 3 s in 10 steps: 0.3 s; the prompts' own figures are 0.5 and 0.25.
    unequal = load(steps=(2, 8), decode_s=(1.0, 2.0))
    assert model.step_seconds(unequal, BOTH).tolist() == [0.3, 0.5]


def test_the_first_draw_is_the_sample_itself():
    draws = model.draw(5, 7, seed=3)
    assert draws.shape == (8, 5) and draws[0].tolist() == [0, 1, 2, 3, 4]
    assert (draws == model.draw(5, 7, seed=3)).all()


def test_verification_is_what_a_step_takes_beyond_one_with_nothing_to_verify():
    # Medians by length: 10, 13, 17 ms.
    rounds = np.array([[9.0, 13.0, 16.0], [10.0, 12.0, 18.0], [30.0, 14.0, 17.0]])
    extra = model.extra_seconds(rounds, resamples=4, seed=0)
    assert extra.shape == (3, 5)
    assert extra[:, 0].tolist() == [0.0, 3.0, 7.0], "a slow step moves no median"


def test_a_line_through_two_points_is_exact_and_states_no_residual():
    line = model.fit_line({1: constant(0.12), 3: constant(0.16)})
    assert (line.points, line.residual) == (2, None)
    assert line.fixed_D[0] == pytest.approx(0.10) and line.slope_D[0] == pytest.approx(0.02)
    assert line.at(2)[0] == pytest.approx(0.14)


def test_a_line_through_three_points_states_how_far_it_lies_from_them():
    # y = 0, 1, 5 at 1, 2, 3: slope 2.5, line -0.5, 2, 4.5, gaps 0.5, -1, 0.5: root mean square of 0.25, 1, 0.25.
    line = model.fit_line({1: constant(0.0), 2: constant(1.0), 3: constant(5.0)})
    assert line.slope_D[0] == pytest.approx(2.5)
    assert line.residual == pytest.approx(0.5**0.5)


def test_one_point_gives_no_line():
    assert model.fit_line({3: constant(1.0)}) is None


def test_lengths_between_lie_on_the_line_of_those_that_drafted_and_measured_ones_stay():
    # Without a draft a step costs 0.05, which the line 0.10 + 0.02 k does not go through.
    curve = model.step_curve({0: constant(0.05), 1: constant(0.12), 3: constant(0.16)}, up_to=4)
    assert {k: round(float(each[0]), 6) for k, each in curve.items()} == {0: 0.05, 1: 0.12, 2: 0.14, 3: 0.16, 4: 0.18}


def test_without_a_second_length_nothing_between_is_made_up():
    assert sorted(model.step_curve({0: constant(0.05), 3: constant(0.16)}, up_to=3)) == [0, 3]


def test_rates_count_steps_that_took_the_position_and_all_before_it():
    # C60: 0, 1, 2, 3 accepted of 3: 3/4, 2/4, 1/4.
    rates = model.position_rates([[0, 1], [2, 3]], 3, ONE)
    assert rates[:, 0].tolist() == [0.75, 0.5, 0.25]


def test_expected_tokens_add_up_the_rates_and_end_at_what_was_seen():
    # 1 + 0.75 = 1.75, + 0.5 = 2.25, + 0.25 = 2.5; replies that end within steps gave 2.0, 0.8 of it.
    tokens = model.expected_tokens(np.array([[0.75], [0.5], [0.25]]), np.array([2.0]))
    assert {k: round(float(each[0]), 6) for k, each in tokens.items()} == {0: 1.0, 1: 1.4, 2: 1.8, 3: 2.0}


def test_the_best_length_has_the_highest_rate_and_says_what_it_cannot_be_told_from():
    # Paired draw by draw, 2 is always below 3; 1 is above it in half of the draws.
    rates = {1: np.array([9.0, 12.0, 9.0]), 2: np.array([8.0, 9.0, 9.0]), 3: np.array([10.0, 10.0, 10.0])}
    choice = model.choose(rates, prompts=5)
    assert (choice.best, choice.not_told_apart) == (3, [1])
    assert choice.share_best == {1: 0.5, 2: 0.0, 3: 0.5}


def test_nothing_is_told_apart_from_a_single_prompt():
    assert model.choose({0: constant(1.0), 1: constant(9.0)}, prompts=1).not_told_apart == [0]


def test_the_speed_up_of_whole_requests_keeps_the_time_to_the_first_token():
    # Base: 2 * (0.1 + 1.0) s. Draft: 2 * 0.1 + 20 / 2.5 * 0.2 = 1.8 s.
    found = model.request_speedup(load(), np.array([2.5]), np.array([0.2]), ONE)
    assert found[0] == pytest.approx(2.2 / 1.8)


@given(st.floats(0, 1), st.floats(-1, 1), st.sets(st.integers(1, 16), min_size=3, max_size=6))
def test_a_line_goes_through_points_that_lie_on_one(fixed, slope, lengths):
    line = model.fit_line({k: constant(fixed + slope * k) for k in lengths})
    assert line.fixed_D[0] == pytest.approx(fixed, abs=1e-9) and line.slope_D[0] == pytest.approx(slope, abs=1e-9)
    assert line.residual == pytest.approx(0, abs=1e-9)
