"""What only another machine gives: told in numbers, with what can be run here instead."""

import dataclasses
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from harness import preflight
from harness.config import load_all, load_reproduction
from harness.errors import UserError
from harness.preflight import Found, look, needed, require, shortfalls, target_instead
from harness.sections.verifier import Needs

NEEDS = Needs(cores=16, memory_gb=64.0, disk_gb=7600.0, gpus=2, gpu_memory_gb=80.0)
ENOUGH = Found(memory_gb=64.0, disk_gb=8000.0, gpu_memory_gb=[79.6, 79.6], cuda_build=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"gpu_memory_gb": [79.6]}, ["GPUs: 2 needed, 1 found"]),
        ({"gpu_memory_gb": []}, ["GPUs: 2 needed, 0 found"]),
        ({"gpu_memory_gb": [24.0, 79.6]}, ["GPU memory: 2 of 80 GB needed, 1 found, the largest has 80 GB"]),
        ({"memory_gb": 24.0}, ["memory: 64 GB needed, 24 GB found"]),
        ({"disk_gb": 90.4}, ["disk: 7,600 GB needed, 90 GB free"]),
        ({"cuda_build": False}, ["vLLM: its CUDA build needed, its CPU build found"]),
        ({"memory_gb": 1.0, "disk_gb": 1.0}, ["memory: ", "disk: "]),
    ],
)
def test_each_thing_that_is_short_is_named_with_both_numbers(changes: dict, said: list[str]):
    lines = list(shortfalls(NEEDS, dataclasses.replace(ENOUGH, **changes)))
    assert len(lines) == len(said)
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))


def test_a_run_without_gpus_asks_for_none():
    needs = Needs(cores=2, memory_gb=12.0, disk_gb=5.0)
    assert not list(shortfalls(needs, Found(24.0, 50.0, [], cuda_build=False)))


def test_every_large_recipe_names_a_small_target_that_there_is():
    runs = load_all()
    for run in runs.values():
        instead = target_instead(run)
        assert instead in runs and not runs[instead].needs.gpus
    assert target_instead(runs["qwen3_8b"]) == "qwen3_8b_mini"
    assert target_instead(runs["llama3_70b"]) == "llama3_8b_mini"


def test_what_the_run_already_wrote_counts_as_free(tmp_path, monkeypatch):
    run = load_reproduction("smollm2_135m")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**9))
    assert look(run).disk_gb == 1.0
    shard = tmp_path / "results" / "smollm2_135m" / "capture" / "shard"
    shard.parent.mkdir(parents=True)
    shard.write_bytes(b"x" * 10**6)
    assert look(run).disk_gb == 1.001


def test_a_recipe_whose_settings_take_more_than_it_says_needs_more():
    run = load_reproduction("llama3_8b")
    assert needed(run) == run.needs
    long = run.data.model_copy(update={"train": [s.model_copy(update={"rows": 10 * s.rows}) for s in run.data.train]})
    more = needed(run.model_copy(update={"data": long}))
    assert more.disk_gb > 5 * run.needs.disk_gb and more.gpu_memory_gb == run.needs.gpu_memory_gb
    packed = run.training.model_copy(update={"tokens_per_step": 200_000})
    assert needed(run.model_copy(update={"training": packed})).gpu_memory_gb > run.needs.gpu_memory_gb


def test_the_refusal_is_one_message_with_the_way_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight, "look", lambda _: Found(24.0, 90.0, [], cuda_build=False))
    with pytest.raises(UserError) as caught:
        require(load_reproduction("qwen3_8b"))
    first, *lines = str(caught.value).splitlines()
    assert first == "reproduce_qwen3_8b: this machine cannot run it:"
    assert [line.split(":")[0].strip() for line in lines[:-1]] == ["GPUs", "vLLM", "memory", "disk"]
    assert lines[-1].startswith("Fix: use a machine with 16 cores, 64 GB of memory, ")
    assert lines[-1].endswith("here, run: snakemake --cores all reproduce_qwen3_8b_mini")


def test_the_command_ends_with_2_within_seconds_and_without_a_traceback():
    started = time.monotonic()
    command = [sys.executable, "-m", "harness.preflight", "mistral_large_3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if len(look(load_reproduction("mistral_large_3")).gpu_memory_gb) >= 8:
        pytest.skip("this machine has what it needs")
    assert done.returncode == 2 and time.monotonic() - started < 10
    assert "GPUs: 8 needed" in done.stderr and "Traceback" not in done.stderr
    assert "reproduce_mistral_large_3_mini" in done.stderr
