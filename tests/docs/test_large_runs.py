"""The page of large runs says what the plan says."""

import re
from pathlib import Path

import pytest

from harness.config import load_reproduction
from harness.plan import size_text, time_text
from harness.planning import plan_of
from tests.guards.sources import text_of

PAGE = Path("docs/large-runs.md")
RUNS = ("llama3_70b", "qwen3_235b_a22b")


def table() -> dict[str, list[str]]:
    """First table of the page: heading of each row to its cells."""
    rows = [line.strip("| ").split(" | ") for line in text_of(PAGE).splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows if len(row) == 3}


@pytest.mark.parametrize(("column", "name"), list(enumerate(RUNS)))
def test_hours_gpus_and_disk_on_the_page_are_those_of_the_plan(column: int, name: str):
    run, cells = load_reproduction(name), table()
    planned = plan_of(run)
    told = {
        "GPUs at once": str(run.needs.gpus),
        "memory, cores": f"{run.needs.memory_gb:.0f} GB, {run.needs.cores}",
        "GPU hours": f"{planned.device_hours:.1f}",
        "disk": size_text(planned.disk_bytes),
    }
    steps = {"capture": ("capture", ""), "training `eagle3`": ("train", "eagle3"),
             "measuring, each variant": ("measure", "none")}  # fmt: skip
    for heading, step in steps.items():
        planned_step = planned.step(*step)
        gpus = f"{planned_step.devices} GPU{'s' if planned_step.devices > 1 else ''}"
        told[heading] = f"{time_text(planned_step.hours)} on {gpus}"
    for heading, planned_text in told.items():
        said, wanted = (text.split(" ", 1) for text in (cells[heading][column], planned_text))
        assert float(said[0].rstrip(",")) == pytest.approx(float(wanted[0]), rel=0.05), heading
        assert said[1:] == wanted[1:], heading


def test_every_setting_that_the_page_names_is_one():
    run = load_reproduction(RUNS[0])
    for section, key in re.findall(r"`(capture|training|serve|needs)\.(\w+)", text_of(PAGE)):
        assert key in type(getattr(run, section)).model_fields, f"{section}.{key}"
