"""Profiles of clusters: their keys are Snakemake's, and every job has the GPUs, memory, cores and time of its rule."""

import re
from pathlib import Path

import pytest
import yaml

from harness.config import load_all
from tests.dag import plugins
from tests.dag.conftest import Toy
from tests.guards.sources import ROOT

CLUSTERS = ("slurm", "kubernetes")
LARGE = "llama3_70b"
# Of one machine alone: it has cores to share, and measured steps must not disturb each other.
OF_ONE_MACHINE = {"cores", "resources", "latency-wait"}


def profile(name: str) -> dict:
    return yaml.safe_load((ROOT / "profiles" / name / "config.yaml").read_text())


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_profile_says_what_the_default_says_beside_what_is_of_one_machine(name: str):
    default = {key: value for key, value in profile("default").items() if key not in OF_ONE_MACHINE}
    assert {key: profile(name)[key] for key in default} == default
    assert "cores" not in profile(name) and "timed" not in str(profile(name).get("resources", ""))


@pytest.mark.parametrize("name", CLUSTERS)
def test_rules_that_a_profile_names_exist(name: str):
    rules = "".join(path.read_text() for path in (ROOT / "harness/rules").glob("*.smk"))
    assert all(f"\nrule {rule}:\n" in rules for rule in profile(name).get("set-resources", {}))


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_job_asks_for_the_gpus_memory_cores_and_time_of_its_rule(toy: Toy, tmp_path: Path, name: str):
    plugins.write(tmp_path / "plugins")
    words = ("--workflow-profile", f"profiles/{name}", "--quiet", "host", "--", f"reproduce_{LARGE}")
    # A dry run shows no more threads than it is given cores.
    done = toy.snakemake("-n", "--cores", "1000", *words, PYTHONPATH=str(tmp_path / "plugins"))
    assert done.returncode == 0, done.stdout
    run = load_all()[LARGE]
    gpus = {"capture": 4, "train": 4, "measure": 4, "parity": 4, "lossless": 4}
    cores = dict.fromkeys(["verifier", "capture", "train", "measure"], run.needs.cores)
    cores |= dict.fromkeys(["parity", "lossless"], run.needs.cores // 2)
    for rule in [*gpus, "verifier", "prompts", "lint", "report"]:
        threads, told = job_of(done.stdout, rule)
        large = rule in cores
        assert threads == cores.get(rule, 1), rule
        assert told.get("gpu", 0) == gpus.get(rule, 0), rule
        assert told["mem_mb"] == run.needs.memory_gb * 1000 if large else told["mem_mb"] <= 4000, rule
        assert told["runtime"] >= 5, rule
    assert job_of(done.stdout, "capture")[1]["runtime"] > 10 * 60, "the plan's hours, twice"


def job_of(told: str, rule: str) -> tuple[int, dict[str, float]]:
    """Threads and resources of the first job of a rule in the text of a dry run."""
    text = re.search(rf"rule {rule}:\n((?:    .*\n)*)", told)
    assert text, f"no job of {rule} in\n{told}"
    threads = re.search(r"^    threads: (\d+)", text[1], flags=re.MULTILINE)
    resources = re.search(r"^    resources: (.*)", text[1], flags=re.MULTILINE)
    assert resources
    amounts = {key: float(value) for key, value in re.findall(r"(\w+)=([\d.]+)(?=,|$)", resources[1])}
    return int(threads[1]) if threads else 1, amounts
