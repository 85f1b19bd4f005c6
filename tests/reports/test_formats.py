"""What the steps write is what the report reads: outputs of the steps' own functions go through the report's types."""

from harness.evaluation import acceptance, lossless, match, parity, speed
from harness.evaluation.client import Answer
from harness.evaluation.settings import MatchSettings, ParitySettings
from harness.provenance import collect
from harness.training.validation import Walk, walk_metrics
from reports import formats
from reports.metrics import METRICS
from reports.rows import machine
from reports.wording import base_name, described


def reply(number: int, tokens: list[int], margin_nats: float = 0.1) -> dict:
    """A line of replies.jsonl whose every token nearly ties with token 9."""
    return {
        "id": f"p{number}", "source": "word_problems", "prompt_token_ids": [1, 2], "token_ids": tokens,
        "token_texts": [f" t{token}" for token in tokens],
        "top_logprobs": [[(token, -1.0), (9, -1.0 - margin_nats)] for token in tokens],
        "spec": {"accepted_per_step": [1, 0], "drafted_per_step": [3, 3]},
    }  # fmt: skip


def test_the_match_of_two_variants_is_read():
    settings = MatchSettings(near_tie_nats=0.5, scale="full")
    found = match.compare([reply(0, [5, 6]), reply(1, [5, 6])], [reply(0, [5, 6]), reply(1, [5, 9])], settings)
    read = formats.MatchFile.model_validate(found)
    assert (read.exact, read.total, read.faults, read.near_tie_nats) == (1, 2, 0, 0.5)
    assert read.differences[0].verdict == "benign"
    assert read.rounding is not None and (read.rounding.tokens, read.rounding.largest_nats) == (3, 0.0)
    assert (read.differences[0].context_before, read.differences[0].draft_after) == (" t5", " t9")


def test_the_acceptance_of_a_source_is_read():
    spec = {"accepted_per_step": [0, 1], "drafted_per_step": [3, 3]}
    answers = [Answer(id=f"p{n}", token_ids=[4, 5, 6, 7], spec=spec) for n in range(2)]
    counted = acceptance.Counters(4, 12, 2, (2, 0, 0))
    figures = acceptance.benchmark(counted, answers, 100, 0)
    checks = acceptance.identity_checks(figures, counted, answers)
    content = {"num_speculative_tokens": 3, "benchmarks": {"s": figures}, "identity_checks": {"s": checks}}
    read = formats.AcceptanceFile.model_validate(content)
    assert read.benchmarks["s"].acceptance_length_pooled == 1.5
    assert all(read.identity_checks["s"].values())


def test_the_acceptance_of_a_source_without_drafts_is_read():
    counted = acceptance.Counters(0, 0, 0, (0, 0, 0))
    figures = acceptance.benchmark(counted, [Answer(id="p", token_ids=[4, 5])], 100, 0)
    assert formats.Benchmark.model_validate(figures).acceptance_length_pooled is None


def test_parity_is_read():
    rows = [reply(n, [5, 6, 7, 8]) for n in range(3)]
    settings = ParitySettings(dtype="float32", bootstrap_resamples=100, seed=0, margin_tokens=0.02, scale="smoke")
    found = parity.compare(rows, [[1, 0]] * 3, 3, settings)
    read = formats.ParityFile.model_validate(found).benchmarks["word_problems"]
    assert (read.gap, read.within, read.served_length, read.margin) == (0.0, True, 1.5, 0.02)


def test_the_validation_of_training_is_read():
    figures = walk_metrics(Walk(4, [2, 1, 0]))
    assert figures["acceptance_length_pooled"] == 1.75


def test_the_test_of_sampled_replies_is_read_and_its_figures_are_described():
    answer = {"question": "likeliest", "place": "draft", "positions": 90, "detectable_bias": 0.1}
    rows = lossless.figures({"p_value": 0.4, "tests": [answer, answer | {"place": "plain", "detectable_bias": None}]})
    content = {"figures": rows, "found": "no difference", "lossless": True, "temperature": 0.8}
    read = formats.ExtraFile.model_validate(content)
    assert (read.figures[0].metric, read.figures[0].value, read.lossless) == ("sampling_p", 0.4, True)
    assert all(described(each.metric).section == "sampling" for each in read.figures)
    assert [each.note for each in read.figures if each.value is None] == ["not run: too few open positions to tell"]


def test_the_time_of_a_step_is_read_and_its_figures_are_described():
    point = {key: {"value": 1.5, "low": 1.4, "high": 1.6, "n": 9} for key in speed.FIGURES} | {"draft_tokens": 3}
    level = {"best_draft_tokens": 3, "not_told_apart": [2, 4], "prompts": 9, "points": [point]}
    rows = speed.figures({"benchmark": "word_problems", "concurrency": {"1": level, "4": level}})
    read = formats.ExtraFile.model_validate({"figures": rows}).figures
    assert {base_name(each.metric) for each in read} <= METRICS.keys()
    best = [(each.benchmark, each.value, each.low, each.high) for each in read if each.metric == "best_draft_tokens"]
    assert best == [("word_problems", 3, 2, 4), ("word_problems/4 at once", 3, 2, 4)]


def test_provenance_of_this_machine_is_read():
    read = formats.Provenance.model_validate(collect({"a": 1}, 3, "smoke"))
    assert (read.seed, read.scale) == (3, "smoke")
    assert " cores of " in machine(read)
