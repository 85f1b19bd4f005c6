"""The SLURM profile on a real SLURM of one node: resources of jobs, two at once, one killed, one resumed, one orphaned.

`make test-slurm` runs it; needs `apt-get install slurm-wlm munge` and the plugin of `make setup CLUSTER=slurm`.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.clusters.one_node import Cluster, missing, one_node
from tests.clusters.small import MANIFEST, check_goes_on, to_capture_again, two_drafts
from tests.dag.conftest import TARGET, Toy

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
    pytest.mark.skipif(
        importlib.util.find_spec("snakemake_executor_plugin_slurm") is None, reason="run make setup CLUSTER=slurm"
    ),
]

# As the profile is, but for a cluster without accounts, and quicker.
PROFILE = (
    "--workflow-profile", "profiles/slurm", "--slurm-no-account", "--slurm-status-command", "squeue",
    "--slurm-init-seconds-before-status-checks", "1", "--seconds-between-status-checks", "2", "--latency-wait", "10",
)  # fmt: skip
LIMIT_S = 240


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with one_node(tmp_path_factory.mktemp("slurm"), cores=8, memory_mb=64_000, gpus=3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def finished(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A whole run through the profile: two drafts, each trained on a GPU of its own for some seconds."""
    toy = two_drafts(tmp_path_factory.mktemp("finished"))
    done = toy.snakemake(*PROFILE, TARGET, limit_s=900, STUB_SLOW="training", **cluster.environment)
    assert done.returncode == 0, done.stdout[-6000:] + cluster.logs()
    return toy


def of_step(jobs: list[dict[str, str]], step: str) -> list[dict[str, str]]:
    return [job for job in jobs if job.get("Comment", "").startswith(f"rule_{step}")]


def test_a_reproduction_runs_whole_with_the_resources_of_its_rules_and_two_jobs_at_once(cluster, finished: Toy):
    trained = [row for row in finished.ran() if row["step"] == "training"]
    first, second = sorted(trained, key=lambda row: row["started"])
    assert second["started"] < first["ended"], "both trainings ran at once"
    assert first["gpus"] != second["gpus"] and {first["gpus"], second["gpus"]} <= set("012")
    jobs = cluster.jobs()
    assert {job["JobState"] for job in jobs} == {"COMPLETED"}
    for job in of_step(jobs, "train"):
        assert "cpu=2,mem=12000M" in job["TRES"] and job["TresPerJob"] == "gres:gpu:1", job
        assert job["OverSubscribe"] == "OK", job
    for job in of_step(jobs, "measure"):
        assert "cpu=8,mem=12000M" in job["TRES"] and job["TresPerJob"] == "gres:gpu:1", "the node is not shared"
        assert job["OverSubscribe"] == "NO", job
    (prompts,) = of_step(jobs, "prompts")
    assert "mem=4000M" in prompts["TRES"] and "TresPerJob" not in prompts and prompts["TimeLimit"] == "02:00:00"


def wait_for(happened: Callable[[], object], what: str) -> None:
    limit = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < limit, what
        time.sleep(0.2)


def start_capture(cluster: Cluster, toy: Toy) -> subprocess.Popen:
    """A run whose capture waits after its second shard, in a job of SLURM."""
    return subprocess.Popen(
        toy.command(*PROFILE, MANIFEST), cwd=toy.root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | cluster.environment | {"STUB_SLEEP": "capture"},
    )  # fmt: skip


def scancel(cluster: Cluster, toy: Toy) -> None:
    running = [job for job in of_step(cluster.jobs(), "capture") if job["JobState"] == "RUNNING"]
    cluster.call("scancel", running[-1]["JobId"])


def captures(toy: Toy) -> list[psutil.Process]:
    """The step's own processes."""
    found = psutil.process_iter(["cmdline", "cwd"])
    here = {each: each.info["cmdline"] or [] for each in found if each.info["cwd"] == str(toy.root)}
    return [each for each, words in here.items() if "harness.capture" in words and "snakemake" not in words]


def kill(cluster: Cluster, toy: Toy) -> None:
    """The step's own process, by force."""
    for process in captures(toy):
        process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("end", [scancel, kill])
def test_a_killed_job_fails_its_step_and_the_next_run_goes_on_where_it_was(
    cluster: Cluster, finished: Toy, end: Callable
):
    toy, before, shards = finished, finished.ran(), to_capture_again(finished)
    written = (shards / "shard_0").read_text()
    run = start_capture(cluster, toy)
    try:
        wait_for((shards / "shard_1").exists, "the capture did not come to its second shard")
        end(cluster, toy)
        told, _ = run.communicate(timeout=LIMIT_S)
    finally:
        run.kill()
        run.communicate()
    assert run.returncode != 0 and "step capture failed" in told, told[-4000:]
    check_goes_on(toy, len(before), written, *PROFILE, limit_s=LIMIT_S, **cluster.environment)


def test_ctrl_c_ends_the_jobs_of_the_run(cluster: Cluster, finished: Toy):
    shards, run = to_capture_again(finished), start_capture(cluster, finished)
    try:
        wait_for((shards / "shard_1").exists, "the capture did not come to its second shard")
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=LIMIT_S)
    finally:
        run.kill()
        run.communicate()
    wait_for(lambda: not cluster.call("squeue", "--noheader").strip(), "a job went on")


def test_after_a_kill_of_the_run_no_step_starts_beside_its_orphan_and_the_next_run_goes_on(cluster, finished: Toy):
    toy, before, shards = finished, finished.ran(), to_capture_again(finished)
    run = start_capture(cluster, toy)
    try:
        wait_for((shards / "shard_1").exists, "the capture did not come to its second shard")
    finally:
        run.kill()
        run.communicate()
    written, orphan = (shards / "shard_0").read_text(), of_step(cluster.jobs(), "capture")[-1]
    assert orphan["JobState"] == "RUNNING" and captures(toy)
    # Whoever follows Snakemake's own advice is stopped before a job is submitted, and told the way.
    assert toy.snakemake("--unlock").returncode == 0
    refused = toy.snakemake(*PROFILE, MANIFEST, **cluster.environment)
    assert refused.returncode == 2 and "Fix: python -m harness.runlock" in refused.stdout, refused.stdout
    assert f"another run's job {orphan['JobId']} (capture, running)" in refused.stdout
    freed = subprocess.run(
        [sys.executable, "-m", "harness.runlock"], cwd=toy.root, env=os.environ | cluster.environment, text=True,
        capture_output=True, check=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert f"cancelled job {orphan['JobId']} (capture, running)" in freed.stderr
    assert not captures(toy) and not cluster.call("squeue", "--noheader").strip()
    assert of_step(cluster.jobs(), "capture")[-1]["JobId"] == orphan["JobId"], "a job was submitted beside it"
    check_goes_on(toy, len(before), written, *PROFILE, limit_s=LIMIT_S, **cluster.environment)
