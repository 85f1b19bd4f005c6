"""Floors of published tests: which entries are floors, and what they demand of a run."""

import json
from pathlib import Path

import pytest
import yaml

from reports.collect import load_run, read_published
from reports.gate_floors import floors, published_share
from reports.gate_verdicts import CANNOT, PASS, REGRESSION, SKIPPED
from reports.rows import make_rows
from tests.guards.sources import ROOT
from tests.reports.synthetic import ALGORITHM, NAME, change

SAME = {"algorithm": ALGORITHM, "benchmark": "word_problems", "source": "their test", "quality": "test_threshold"}


def published_floors(results: Path, *entries: dict) -> list[tuple[str, str, str]]:
    """(metric, verdict, note) of the floors that come from `entries`."""
    path = Path("reproductions") / NAME / "published.yaml"
    path.write_text(yaml.safe_dump([SAME | entry for entry in entries]))
    run = load_run(results, NAME)
    found = [each for each in floors(run, make_rows(run)) if "their test" in each.note]
    return [(each.metric.removeprefix("floor: "), each.verdict, each.note) for each in found]


@pytest.mark.parametrize(
    ("value", "conditions", "verdict"),
    [
        (2.0, {"rule": "measured >= value"}, PASS),
        (3.9, {"rule": "measured >= value"}, REGRESSION),
        (3.9, {"pass_rule": "measured >= 0.5 * value"}, PASS),
        (3.9, {"relative_tolerance": 0.5}, PASS),
        (3.9, {"relative_tolerance": 0.05}, REGRESSION),
    ],
)
def test_a_published_test_demands_its_value_or_the_share_it_names(results, value, conditions, verdict):
    found = published_floors(results, {"metric": "acceptance_length", "value": value, "conditions": conditions})
    assert [each[:2] for each in found] == [("acceptance_length", verdict)]


def test_rates_per_position_are_floors_one_by_one(results):
    rule = {"rule": "measured >= value"}
    found = published_floors(
        results, {"metric": "acceptance_rate_per_position", "value": [0.3, 0.2, 0.99], "conditions": rule}
    )
    assert [each[:2] for each in found] == [
        ("acceptance_rate_position_1", PASS), ("acceptance_rate_position_2", PASS),
        ("acceptance_rate_position_3", REGRESSION),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("benchmark", "told"), [("mt_bench", "data.folder holds no mt_bench/"), ("3 prompts", "not measured here")]
)
def test_a_published_floor_on_what_was_not_run_is_not_compared(results, benchmark, told):
    rule = {"metric": "acceptance_length", "value": 2.0, "conditions": {"rule": "measured >= value"}}
    found = published_floors(results, rule | {"benchmark": benchmark})
    assert [each[1] for each in found] == [SKIPPED] and told in found[0][2]


def test_a_floor_of_the_recipe_on_what_was_not_run_cannot_be_judged(results):
    change(results / f"measured/{ALGORITHM}/latency.json", lambda file: file.update(concurrency={}))
    run = load_run(results, NAME)
    found = [each for each in floors(run, make_rows(run)) if "Speed-up" in each.metric]
    assert [each.verdict for each in found] == [CANNOT]


@pytest.mark.parametrize(
    "entry",
    [
        {"quality": "model_card", "conditions": {"rule": "measured >= value"}},
        {"conditions": "greedy"},
        {"conditions": {"rule": "matches >= int(0.66 * number of prompts)"}},
        {"algorithm": "another", "conditions": {"rule": "measured >= value"}},
        {"k": 16, "conditions": {"rule": "measured >= value"}},
        {"temperature": 1.0, "conditions": {"rule": "measured >= value"}},
    ],
)
def test_a_published_figure_that_is_no_test_is_no_floor(results, entry):
    assert published_floors(results, {"metric": "acceptance_length", "value": 9.0} | entry) == []


def test_a_small_run_is_not_held_against_the_tests_of_others(smoke_results):
    rule = {"metric": "acceptance_length", "value": 9.0, "conditions": {"rule": "measured >= value"}}
    assert published_floors(smoke_results, rule) == []
    assert json.loads((smoke_results / "measured/none/acceptance.json").read_text())["provenance"]["scale"] == "smoke"


def test_every_published_test_of_the_recipes_can_be_held_against_a_run():
    entries = [entry for path in (ROOT / "reproductions").glob("*/published.yaml") for entry in read_published(path)]
    demanding = [entry for entry in entries if published_share(entry) is not None]
    assert demanding
    for entry in demanding:
        values = entry.value if isinstance(entry.value, list) else [entry.value]
        assert all(0 <= float(value) < 20 for value in values), entry
