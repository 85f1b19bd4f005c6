"""The Kubernetes profile over a kubectl that runs Jobs here: resources of Jobs, two at once, one deleted, one resumed.

`make test-kubernetes` runs it; needs the plugin of `make setup CLUSTER=kubernetes`, no cluster.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clusters.small import MANIFEST, check_goes_on, to_capture_again, two_drafts
from tests.dag.conftest import TARGET, Toy

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        importlib.util.find_spec("snakemake_executor_plugin_cluster_generic") is None,
        reason="run make setup CLUSTER=kubernetes",
    ),
]

PROFILE = ("--workflow-profile", "profiles/kubernetes", "--seconds-between-status-checks", "1", "--latency-wait", "10")
LIMIT_S = 240
STAND_IN = Path(__file__).with_name("kubectl.py")


class Kubernetes:
    """Jobs of a made-up cluster, whose `environment` has its kubectl first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "jobs"
        self.folder.mkdir()
        program = folder / "kubectl"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
        program.chmod(0o755)
        self.environment = {
            "KUBECTL_FOLDER": str(self.folder), "PATH": f"{folder}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "0,1",
            "SPECPROOF_GPU_LOCKS": str(folder / "locks"),
        }  # fmt: skip

    def manifests(self, step: str) -> list[dict]:
        return [json.loads(path.read_text()) for path in self.folder.glob(f"*{step}-*/manifest.json")]

    def resources(self, step: str) -> dict[str, str]:
        """Of the one container of the first Job of a step."""
        (container,) = self.manifests(step)[0]["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        return container["resources"]["limits"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Kubernetes:
    return Kubernetes(tmp_path_factory.mktemp("kubernetes"))


@pytest.fixture(scope="module")
def finished(cluster: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A whole run through the profile: two drafts, each trained on a GPU of its own for some seconds."""
    toy = two_drafts(tmp_path_factory.mktemp("finished"))
    done = toy.snakemake(*PROFILE, TARGET, limit_s=900, STUB_SLOW="training", **cluster.environment)
    assert done.returncode == 0, done.stdout[-6000:]
    return toy


def test_a_reproduction_runs_whole_with_the_resources_of_its_rules_and_two_jobs_at_once(cluster, finished: Toy):
    trained = [row for row in finished.ran() if row["step"] == "training"]
    first, second = sorted(trained, key=lambda row: row["started"])
    assert second["started"] < first["ended"], "both trainings ran at once"
    assert {first["gpus"], second["gpus"]} == {"0", "1"}
    assert cluster.resources("train") == {"cpu": "2", "memory": "12000M", "nvidia.com/gpu": "1"}
    assert cluster.resources("prompts") == {"cpu": "1", "memory": "4000M"}
    assert cluster.manifests("prompts")[0]["spec"]["activeDeadlineSeconds"] == 120 * 60


def wait_for(happened: Callable[[], object], what: str) -> None:
    limit = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < limit, what
        time.sleep(0.2)


def test_a_deleted_job_fails_its_step_and_the_next_run_goes_on_where_it_was(cluster, finished: Toy):
    toy, before, shards = finished, finished.ran(), to_capture_again(finished)
    others, written = set(cluster.folder.iterdir()), (shards / "shard_0").read_text()
    run = subprocess.Popen(
        toy.command(*PROFILE, MANIFEST), cwd=toy.root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | cluster.environment | {"STUB_SLEEP": "capture"},
    )  # fmt: skip
    try:
        wait_for((shards / "shard_1").exists, "the capture did not come to its second shard")
        (job,) = set(cluster.folder.iterdir()) - others
        cancel = [toy.root / "profiles/kubernetes/cancel.sh", f"default/{job.name}"]
        path = f"{Path(sys.executable).parent}:{cluster.environment['PATH']}"
        subprocess.run(cancel, cwd=toy.root, env=os.environ | cluster.environment | {"PATH": path}, check=True)
        told, _ = run.communicate(timeout=LIMIT_S)
    finally:
        run.kill()
        run.communicate()
    assert run.returncode != 0 and "step capture failed" in told, told[-4000:]
    check_goes_on(toy, len(before), written, *PROFILE, limit_s=LIMIT_S, **cluster.environment)
