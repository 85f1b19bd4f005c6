"""Published figures beside ours: which row answers to which, and what is said to differ."""

from pathlib import Path

import pytest
import yaml

from reports.advice import answers
from reports.beside import all_beside, all_elsewhere, theirs_written
from reports.collect import load_run
from reports.formats import Published
from reports.rows import make_rows
from tests.reports.synthetic import ALGORITHM, NAME, REPRODUCTION, change, write_run

ALIKE = {"k": 3, "temperature": 0.0, "engine": "vLLM", "max_output_tokens": 64}


def item(**changes):
    """A published figure whose conditions are ours."""
    base = {"algorithm": ALGORITHM, "metric": "acceptance_length", "benchmark": "word_problems", "value": 2.0}
    return base | {"conditions": ALIKE, "source": "a paper"} | changes


def publish(name, *items):
    """Published figures of a reproduction."""
    folder = Path("reproductions") / name
    folder.mkdir(exist_ok=True)
    (folder / "published.yaml").write_text(yaml.safe_dump(list(items)))


def beside(results, *items):
    """The pairs of the toy run."""
    publish(NAME, *items)
    run = load_run(results, NAME)
    return all_beside(run, make_rows(run))


@pytest.mark.parametrize(
    ("changes", "metric"),
    [
        ({}, "acceptance_length"),
        ({"metric": "acceptance_length_threshold"}, "acceptance_length"),
        ({"metric": "acceptance_rate_first_position", "value": 0.6}, "acceptance_rate_position_1"),
        ({"metric": "acceptance_rate_per_position", "value": [0.6, 0.4, 0.2]}, "acceptance_rate_position_1"),
        ({"metric": "speedup", "conditions": {"concurrency": 4}}, "speedup_c4"),
        ({"metric": "speedup", "conditions": {"batch_size": 1}}, "speedup_c1"),
        ({"metric": "speedup", "conditions": {}}, "speedup_c1"),
        ({"metric": "math_accuracy", "value": 0.8}, "accuracy_flexible"),
    ],
)
def test_each_published_metric_has_its_row(results, changes, metric):
    (found,) = beside(results, item(**changes))
    assert found.ours.metric == metric
    assert found.ours.variant == ALGORITHM


def test_the_gpu_hours_of_a_training_stand_beside_published_ones(results):
    def on_two_gpus(summary):
        summary |= {"seconds": 1800.0, "processes": 2}
        summary["provenance"]["hardware"]["gpus"] = ["H100", "H100"]

    change(results / f"training/{ALGORITHM}/summary.json", on_two_gpus)
    published = {"metric": "training_gpu_hours", "benchmark": "training", "conditions": {"hardware": "4xH100"}}
    (found,) = beside(results, item(**published))
    assert (found.ours.value, found.ours.unit) == (1.0, "h")
    assert any(said.startswith("4xH100 there, ") for said in found.differs)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"metric": "tpot_ms"}, "not measured here in this form"),
        ({"benchmark": "HumanEval"}, "not run: HumanEval is no benchmark of this reproduction"),
        ({"benchmark": "MTBench"}, "not run: data.folder holds no mt_bench/"),
        ({"metric": "speedup", "conditions": {"concurrency": 64}}, "not run: concurrency 64 was not measured"),
        (
            {"metric": "training_gpu_hours", "benchmark": "training"},
            "not run: trained in 3 min 12 s on 2 cores of Example CPU 3000, 23 GiB memory, no GPU",
        ),
    ],
)
def test_a_figure_without_a_counterpart_says_why(results, changes, why):
    (found,) = beside(results, item(**changes))
    assert (found.ours, found.absent) == (None, why)


def test_a_figure_for_an_algorithm_that_was_not_run_is_left_out(results):
    assert beside(results, item(algorithm="another")) == []


def test_conditions_that_are_alike_are_not_said_to_differ(results):
    (found,) = beside(results, item(conditions=ALIKE | {"draft": "lab/Draft"}))
    assert found.differs == ["draft lab/Draft there, ours learnt from 98 replies"]


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ({"k": 7}, "7 draft tokens per step there, 3 here"),
        ({"k": None}, "draft tokens per step not stated there"),
        ({"temperature": 0.6}, "temperature 0.6 there, greedy here"),
        ({"temperature": None}, "temperature not stated there"),
        ({"engine": "SGLang"}, "SGLang there, vLLM here"),
        ({"max_output_tokens": 2048}, "up to 2048 tokens a reply there, 64 here"),
        ({"thinking": "on"}, "thinking on there"),
        ({"drafting": "tree"}, "tree there"),
    ],
)
def test_every_stated_condition_that_is_not_alike_is_said(results, conditions, said):
    (found,) = beside(results, item(conditions=ALIKE | conditions))
    assert found.differs[1:] == [said]


def test_a_floor_of_a_test_is_called_that(results):
    (found,) = beside(results, item(quality="test_threshold"))
    assert found.differs[0] == "a floor of a test there, not a measurement"


def test_distance_and_interval_follow_from_ours_over_theirs(results):
    (found,) = beside(results, item(value=2.0))
    assert found.ratio == (found.ours.value / 2, found.ours.low / 2, found.ours.high / 2)
    assert found.verdict == f"{found.ours.value / 2 - 1:.0%} above"
    (same,) = beside(results, item(value=found.ours.value))
    assert same.verdict == "within our interval"


def test_rates_by_position_are_written_in_full(results):
    (found,) = beside(results, item(metric="acceptance_rate_per_position", value=[0.6, 0.4, 0.2]))
    assert theirs_written(found) == "60.0% / 40.0% / 20.0%"


def test_a_miniature_says_so_before_anything_else(workplace):
    path = Path("reproductions") / NAME / "reproduction.yaml"
    own = {key: REPRODUCTION[key] for key in ("verifier", "verifier_checks", "needs", "algorithms")}
    path.write_text(yaml.safe_dump(REPRODUCTION | {"mini": own}))
    publish(NAME, item())
    results = write_run(Path("results") / f"{NAME}_mini", scale="mini")
    run = load_run(results, NAME)
    rows = make_rows(run)
    assert all_beside(run, rows)[0].differs[0] == "a miniature here"
    told = [sentence for answer in answers(run, rows) for sentence in answer.sentences]
    assert "This is a miniature: it says nothing about the worth of a draft." in told
    assert not any("Use it" in sentence for sentence in told)


def test_without_own_figures_those_of_other_verifiers_give_the_order_of_size(results):
    publish(
        "other_model", item(benchmark="mt_bench", value=2.6), item(benchmark="mt_bench", value=3.5), item(value=9.0)
    )
    publish("third_model", item(benchmark="mt_bench", value=2.2), item(algorithm="another", benchmark="mt_bench"))
    run = load_run(results, NAME)
    assert [(each.reproduction, each.lengths) for each in all_elsewhere(run) if each.benchmark == "mt_bench"] == [
        ("other_model", [2.6, 3.5]), ("third_model", [2.2]),
    ]  # fmt: skip
    told = answers(run, make_rows(run))[-1].sentences
    assert f"published for other verifiers on MT-Bench: {ALGORITHM} 2.20 to 3.50." in told[1]
    assert "another verifier, other prompts, and drafts that learnt from 98 replies" in told[2]


def test_a_figure_that_names_another_verifier_says_so(results):
    (found,) = beside(results, item(verifier="lab/Larger-7B"))
    assert found.differs[0] == "verifier lab/Larger-7B there"
    assert Published.model_validate(item()).verifier == ""
