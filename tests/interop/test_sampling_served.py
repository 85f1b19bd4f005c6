"""vLLM's own rejection sampler passes the test of losslessness; faults planted in it do not.

One fault is there without anybody's doing: the CPU build as it is shipped (`harness.serving.cpu_support.temperature`).
"""

import json
import os
import subprocess
import sys

import pytest

from harness.evaluation.lossless import run_lossless
from harness.evaluation.settings import LosslessSettings
from harness.files import read_jsonl
from tests import toy
from tests.interop.serving import REPOSITORY, TIMEOUT_S, needs_cpu_build

pytestmark = [pytest.mark.slow, needs_cpu_build]

JOB = {
    "verifier": "verifier", "prompts": [[72, 105, 33], [110, 111, 119, 32], [7, 3, 200, 150, 9], [65]],
    "samples": 48, "max_tokens": 24, "temperature": 0.6, "draft_tokens": 2,
}  # fmt: skip
SETTINGS = LosslessSettings.model_validate(
    {"sampling": {"temperature": JOB["temperature"]}, "seed": 0, "scale": "smoke"}
)


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """Folder with the verifier and the samples of every run."""
    root = tmp_path_factory.mktemp("sampled")
    toy.write_verifier(root / "verifier")
    (root / "job.json").write_text(json.dumps(JOB))
    done = subprocess.run(
        [sys.executable, "-m", "tests.interop.sample_drafted", "job.json"],
        cwd=root, env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return root


def verdict(root, name):
    rows = [read_jsonl(root / f"{run}.jsonl") for run in ("none", name)]
    return run_lossless(root / "verifier", *rows, SETTINGS)


def test_the_engine_as_it_is_passes(sampled):
    found = verdict(sampled, "right")
    assert found["lossless"] and found["compared_with"] == "reference"
    counts = {row["benchmark"]: row["value"] for row in found["figures"] if row["metric"] == "sampling_positions"}
    assert counts.keys() == {"plain", "draft", "bonus", "all"} and min(counts.values()) >= 30


@pytest.mark.parametrize(
    ("fault", "place"),
    [("as_shipped", "draft"), ("accept_all", "draft"), ("resample_all", "draft"), ("greedy_bonus", "bonus")],
)
def test_a_fault_planted_in_the_engine_is_caught_where_it_is(sampled, fault, place):
    found = verdict(sampled, fault)
    assert not found["lossless"]
    # A greedy bonus also shows where a step had no draft: there the sampler draws its bonus alone.
    assert place in {answer["place"].split()[0] for answer in found["tests"] if answer["p_value"] < 1e-3}
