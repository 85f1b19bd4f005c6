"""The comparison of training speed: what its figures say, and a run at toy size."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.training_speed import summarise
from tests import toy
from tests.harness.training.toy_training import AUX, make_store


def turn(ours: tuple[int, float], upstream: tuple[int, float]) -> dict[str, dict[str, Any]]:
    return {
        side: {"tokens": tokens, "seconds": seconds, "processor_seconds": 2 * seconds}
        for side, (tokens, seconds) in {"ours": ours, "upstream": upstream}.items()
    }


def test_speeds_are_pooled_over_turns_and_compared_turn_by_turn():
    programs = {"ours": {"peak_memory_bytes": 300}, "upstream": {"peak_memory_bytes": 400}}
    # Both slow down together from turn to turn, so that the ratio of each turn is 2.
    found = summarise([turn((100, 1.0 * k), (100, 2.0 * k)) for k in range(1, 6)] + [programs])
    assert found["ours"]["tokens_per_s"] == pytest.approx(500 / 15)
    assert found["upstream"]["tokens_per_s"] == pytest.approx(500 / 30)
    assert [found["speed_ratio"][key] for key in ("value", "low", "high")] == pytest.approx([2, 2, 2])
    assert found["processor_ratio"] == pytest.approx(2)
    assert found["memory_ratio"] == 0.75 and found["upstream"]["peak_memory_bytes"] == 400


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a reproduction, its verifier and its capture, all of toy size."""
    toy.write_verifier(tmp_path / "models" / "toy", num_hidden_layers=6)
    lengths = [400 + 17 * (row % 9) for row in range(16)]
    make_store(tmp_path / "results" / "toy" / "capture", tmp_path / "models" / "toy", lengths=lengths)
    recipe = yaml.safe_load(Path("tests/toy_reproduction.yaml").read_text())
    recipe["capture"]["aux_layers"] = AUX
    recipe["algorithms"] = {"eagle3": {"speculative_tokens": 3, "draft_vocab_size": 64}}
    (tmp_path / "reproductions" / "toy").mkdir(parents=True)
    (tmp_path / "reproductions" / "toy" / "reproduction.yaml").write_text(yaml.safe_dump(recipe))
    return tmp_path


@pytest.mark.slow
def test_at_toy_size_both_train_and_a_ratio_is_printed(place: Path):
    command = [sys.executable, "-m", "benchmarks.training_speed", "--reproduction", "toy", "--algorithms", "eagle3"]
    done = subprocess.run(
        [*command, "--turns", "2", "--out", "found.json"], cwd=place, capture_output=True, text=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(Path.cwd()), "CI": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    assert re.search(
        r"eagle3 +\d+ +\d+ +\d+\.\d\d \[\d+\.\d\d, \d+\.\d\d\] +\d+\.\d\d +\d+ +\d+ +\d\.\d\d", done.stdout
    )
    assert (place / "found.json").exists()
