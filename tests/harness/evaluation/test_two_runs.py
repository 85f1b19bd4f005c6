"""Two runs of one build, simulated with a fixed seed: how often the second lies within what the first one states.

Per-prompt data as the checks keep them. In the second run of the same prompts some replies part from the first run's at
a near tie and go on otherwise; every request takes a little more or less time; the machine itself is slower or faster.
"""

import numpy as np
import pytest

from harness.evaluation.acceptance import benchmark, count_details
from harness.evaluation.client import Answer
from harness.evaluation.statistics import farthest_ratio, paired_ratio, widened

RUNS, DRAWS, DRAFTS = 120, 200, 3
PARTED_SHARE = 0.5  # of the replies; seen in bfloat16 with 8 requests at once
NOISE, DRIFT, KERNEL_NOISE = 0.05, 0.06, 0.01


def steps(generator, skill, count):
    """Accepted drafts of `count` verify steps, when each next draft is right with chance `skill`."""
    right = generator.random((count, DRAFTS)) < skill
    return right.cumprod(axis=1).sum(axis=1).tolist()


def reply(prompt_id, accepted):
    spec = {"accepted_per_step": accepted, "drafted_per_step": [DRAFTS] * len(accepted)}
    tokens = list(range(1 + sum(a + 1 for a in accepted)))
    return Answer(str(prompt_id), text="x", token_ids=tokens, finish_reason="stop", spec=spec)


def twice(generator, prompts):
    """Accepted drafts by prompt in two runs; the second parts from the first in some replies, from some step on."""
    first, second = [], []
    for skill, count in zip(generator.beta(4, 3, prompts), generator.integers(8, 30, prompts), strict=True):
        accepted = steps(generator, skill, count)
        kept = int(generator.integers(0, count)) if generator.random() < PARTED_SHARE else count
        first.append(accepted)
        second.append(accepted[:kept] + steps(generator, skill, count - kept))
    return first, second


def acceptance(replies):
    answers = [reply(number, accepted) for number, accepted in enumerate(replies)]
    return benchmark(count_details(answers, DRAFTS), answers, DRAWS, seed=0)


@pytest.mark.parametrize("prompts", [20, 40])
def test_the_second_runs_acceptance_lies_within_the_firsts_interval_19_times_of_20(prompts):
    generator, within, apart = np.random.default_rng(11), 0, 0
    for _ in range(RUNS):
        first, second = (acceptance(run) for run in twice(generator, prompts))
        within += first["low"] <= second["acceptance_length_pooled"] <= first["high"]
        apart += first["acceptance_length_pooled"] != second["acceptance_length_pooled"]
    assert within >= 0.95 * RUNS
    assert apart > 0.9 * RUNS, "the case says nothing if both runs are the same"


def test_another_build_is_told_apart():
    generator, within, runs = np.random.default_rng(12), 0, RUNS // 4
    for _ in range(runs):
        first, _ = twice(generator, 40)
        worse = [[max(a - 1, 0) for a in accepted] for accepted in first]
        found = acceptance(first)
        within += found["low"] <= acceptance(worse)["acceptance_length_pooled"]
    assert within <= 0.05 * runs


def requests(seconds):
    return [{"id": str(i), "output_tokens": 64, "latency_s": float(s)} for i, s in enumerate(seconds)]


def latency_twice(generator, prompts):
    """(records, times of a fixed piece of work before and after) of a run and of the next one."""
    hard, drift = generator.lognormal(0, 0.5, prompts), generator.lognormal(0, DRIFT)
    return [
        (
            requests(hard * factor * generator.lognormal(0, NOISE, prompts)),
            factor * generator.lognormal(0, KERNEL_NOISE, 2),
        )
        for factor in (1.0, drift)
    ]


def test_the_latency_ratio_of_two_runs_lies_within_its_interval_19_times_of_20():
    generator, within, unwidened = np.random.default_rng(13), 0, 0
    for _ in range(RUNS):
        (first, times), (second, later_times) = latency_twice(generator, 12)
        plain = paired_ratio(first, second, DRAWS)
        wide = widened(plain, farthest_ratio(times, later_times))
        within += wide.low <= 1.0 <= wide.high
        unwidened += plain.low <= 1.0 <= plain.high
    assert within >= 0.95 * RUNS
    assert unwidened < 0.8 * RUNS, "without the machine's own drift the interval is too sharp"
