"""The recipes that the project ships: complete, pinned, planned, and with their figures' sources."""

import re

import pytest
import yaml

from harness.config import load_reproduction
from harness.plan import size_text, time_text
from harness.planning import plan_of
from harness.recipes import REPRODUCTIONS, read_recipe, reproduction_names, scales_of
from reports.collect import read_published

NAMES = reproduction_names()
LARGE = [name for name in NAMES if "like: defaults\n" in (REPRODUCTIONS / name / "reproduction.yaml").read_text()]
PLANNED = [name for name in NAMES if "plan" in read_recipe(name)]
MISSION = [
    "gpt_oss_120b", "gpt_oss_20b", "llama3_70b", "llama3_8b", "mistral_large_3", "qwen3_14b", "qwen3_235b_a22b",
    "qwen3_30b_a3b", "qwen3_32b", "qwen3_8b", "qwen3_vl_235b_a22b", "smollm2_135m",
]  # fmt: skip
HEADINGS = ("What differs from a published recipe", "Change log")


def test_every_verifier_of_the_mission_has_its_recipe():
    assert set(MISSION) <= set(PLANNED)
    assert set(MISSION) - set(LARGE) == {"smollm2_135m"}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_verifier_is_pinned_to_a_commit_and_has_known_sizes(name: str):
    run = load_reproduction(name)
    assert run.verifier.source == "hub" and len(set(run.verifier.revision)) > 8
    assert run.plan is not None and run.needs.gpus >= run.serve.tensor_parallel_size


@pytest.mark.parametrize("name", PLANNED)
def test_the_plan_fits_what_the_recipe_says_it_needs(name: str):
    """Disk in all, memory of a device; and not three times as much, which would turn away machines that do."""
    run = load_reproduction(name)
    planned = plan_of(run)
    assert planned.disk_bytes / 1e9 <= run.needs.disk_gb
    assert planned.disk_bytes / 1e9 > run.needs.disk_gb / 3 or run.needs.disk_gb <= 5
    memory_gb = run.needs.gpu_memory_gb if run.needs.gpus else run.needs.memory_gb
    assert planned.memory_bytes / 1e9 <= memory_gb


@pytest.mark.parametrize("name", LARGE)
def test_every_setting_stands_within_two_files(name: str):
    """A recipe says `like:` once, and what it names says it no further."""
    own = yaml.safe_load((REPRODUCTIONS / name / "reproduction.yaml").read_text())
    shared = yaml.safe_load((REPRODUCTIONS / f"{own['like']}.yaml").read_text())
    assert "like" not in shared and "like" not in read_recipe(name)


@pytest.mark.parametrize("name", NAMES)
def test_published_figures_carry_their_source_and_conditions(name: str):
    for figure in read_published(REPRODUCTIONS / name / "published.yaml"):
        assert len(figure.source) > 10 and figure.value is not None
        assert isinstance(figure.conditions, dict) and figure.conditions


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_recipe_says_what_differs_and_what_changed(name: str):
    page = (REPRODUCTIONS / name / "README.md").read_text()
    headings = re.findall(r"^## (.*)$", page, flags=re.MULTILINE)
    assert all(heading in headings for heading in HEADINGS)
    assert re.search(r"^1\. ", page, flags=re.MULTILINE), "deviations are numbered"
    assert f"reproduce_{name}" in page
    if "mini" in scales_of(read_recipe(name)):
        assert f"reproduce_{name}_mini" in page


@pytest.mark.parametrize("name", LARGE)
def test_the_cost_on_a_page_is_that_of_the_plan(name: str):
    planned = plan_of(load_reproduction(name))
    page = (REPRODUCTIONS / name / "README.md").read_text()
    (hours, disk) = re.findall(r"^\| all \| (\d+) GPU hours \| \| (.*) \|$", page, flags=re.MULTILINE)[0]
    assert float(hours) == pytest.approx(planned.device_hours, rel=0.05, abs=1), "write the page's table anew"
    assert disk == size_text(planned.disk_bytes)
    trained = [step for step in planned.steps if step.name == "train"]
    told = re.findall(r"^\| training `(\w+)` \| (.*) \| (\d+) \|", page, flags=re.MULTILINE)
    assert told == [(step.of, time_text(step.hours), str(step.devices)) for step in trained]
    assert f"; drafts train on {'one' if trained[0].devices == 1 else trained[0].devices} |" in page
    index = (REPRODUCTIONS / "README.md").read_text()
    assert re.search(rf"^\| \[{name}\]\({name}/README.md\) \|.*\| {hours} \| {disk} \|", index, flags=re.MULTILINE)


def test_one_miniature_of_each_architecture_at_least():
    families = set()
    for name in NAMES:
        if "mini" in scales_of(read_recipe(name)):
            mini = load_reproduction(name, "mini")
            assert mini.needs.gpus == 0 and mini.verifier.source == "miniature"
            assert {"eagle3"} < set(mini.algorithms), "EAGLE-3 and a block drafter"
            families.add(mini.verifier.family)
    assert {"llama", "qwen3", "qwen3_moe", "qwen3_vl_moe", "gpt_oss", "mistral"} <= families


@pytest.mark.parametrize(("name", "accuracy"), [("llama3_8b", 0.72), ("qwen3_8b", 0.84)])
def test_the_gates_of_the_published_integration_test_are_asked_for(name: str, accuracy: float):
    run = load_reproduction(name)
    assert run.gates.accuracy_min == {"gsm8k_5shot": accuracy} and run.gates.output_match_exact_min == 0.66
    asked = run.evaluate.output_match
    assert asked is not None and asked.sources == ["repeat_word", "gsm8k_5shot"]
    rows = {source.name: source.rows for source in run.data.heldout}
    assert asked.limit == 50 and all(min(rows[name], run.evaluate.acceptance.limit) >= 50 for name in asked.sources)
    assert rows["gsm8k_5shot"] == run.evaluate.accuracy.limit == 1319
