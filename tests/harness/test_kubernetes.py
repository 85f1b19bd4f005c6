"""Steps as Jobs of Kubernetes: what a manifest asks for, and what is told of a Job. kubectl is a stand-in."""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from harness import kubernetes
from harness.errors import UserError
from tests.guards.sources import ROOT

TEMPLATE = ROOT / "profiles/kubernetes/job.yaml"
WANTED = Namespace(gpus=4, cores=32, memory_mb=256_000, minutes=90)


def container(job: dict) -> dict:
    return job["spec"]["template"]["spec"]["containers"][0]


@pytest.fixture
def kubectl(monkeypatch):
    """Answers with what is set, notes what it was called with."""
    calls = []

    def run(words, input=None, **_: object) -> subprocess.CompletedProcess:
        calls.append((words, input))
        return subprocess.CompletedProcess(words, run.code, run.told, run.said)

    run.calls, run.code, run.told, run.said = calls, 0, "", ""
    monkeypatch.setattr(subprocess, "run", run)
    return run


def test_a_job_asks_for_what_its_rule_needs_and_runs_where_snakemake_runs(monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    job = kubernetes.manifest_of(TEMPLATE, "train_draft", Path("tmp/job.sh"), WANTED)
    amounts = {"cpu": "32", "memory": "256000M", "nvidia.com/gpu": "4"}
    assert container(job)["resources"] == {"requests": amounts, "limits": amounts}
    assert container(job)["command"] == ["/bin/sh", f"{tmp_path}/tmp/job.sh"]
    assert container(job)["workingDir"] == str(tmp_path)
    assert job["spec"]["activeDeadlineSeconds"] == 5400
    assert job["metadata"]["name"].startswith("train-draft-")


def test_a_step_without_gpus_asks_for_none():
    job = kubernetes.manifest_of(TEMPLATE, "lint", Path("job.sh"), Namespace(**vars(WANTED) | {"gpus": 0}))
    assert set(container(job)["resources"]["limits"]) == {"cpu", "memory"}


def test_two_jobs_of_one_step_have_two_names():
    names = {kubernetes.manifest_of(TEMPLATE, "a", Path("x"), WANTED)["metadata"]["name"] for _ in range(2)}
    assert len(names) == 2


def test_a_manifest_that_is_none_is_named(tmp_path: Path):
    (tmp_path / "job.yaml").write_text("kind: Job\n")
    with pytest.raises(UserError, match=r"job\.yaml: no Job with one container\. Fix: "):
        kubernetes.manifest_of(tmp_path / "job.yaml", "a", Path("x"), WANTED)


def test_what_is_submitted_can_be_asked_for(kubectl, capsys):
    kubernetes.submit(Namespace(manifest=TEMPLATE, step="lint", script=Path("x"), **vars(WANTED)))
    printed = capsys.readouterr().out.strip()
    created = json.loads(kubectl.calls[0][1])
    assert printed == f"default/{created['metadata']['name']}"
    kubernetes.cancel(Namespace(jobs=[printed]))
    assert kubectl.calls[1][0][:6] == [
        "kubectl",
        "delete",
        "job",
        created["metadata"]["name"],
        "--namespace",
        "default",
    ]


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        ("{}", "running"),
        ('{"status": {"active": 1}}', "running"),
        ('{"status": {"conditions": [{"type": "Complete", "status": "True"}]}}', "success"),
        ('{"status": {"conditions": [{"type": "FailureTarget", "status": "True"}]}}', "running"),
        ('{"status": {"conditions": [{"type": "Failed", "status": "True"}]}}', "failed"),
        ("", "failed"),
    ],
)
def test_the_state_of_a_job_is_told_in_a_word(kubectl, capsys, told: str, answer: str):
    kubectl.told = told
    kubernetes.status(Namespace(job="default/a"))
    assert capsys.readouterr().out == f"{answer}\n"


def test_a_cluster_that_does_not_answer_does_not_end_the_run(kubectl, capsys):
    kubectl.code, kubectl.said = 1, "connection refused"
    kubernetes.status(Namespace(job="default/a"))
    told = capsys.readouterr()
    assert told.out == "running\n" and "connection refused" in told.err


def test_without_kubectl_the_fault_is_one_line():
    words = [sys.executable, "-m", "harness.kubernetes", "cancel", "default/a"]
    done = subprocess.run(words, cwd=ROOT, env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "kubectl: not installed. Fix:" in done.stderr and "Traceback" not in done.stderr
