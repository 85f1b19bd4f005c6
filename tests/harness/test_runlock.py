"""What a killed run leaves behind: jobs on SLURM that go on, and a lock. squeue and scancel are scripts on PATH."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness import runlock, slurm
from harness.errors import UserError
from tests.guards.sources import ROOT

RUN = "0a1b2c3d-0000-4000-8000-00000000000f"


class Queue:
    """A made-up SLURM: `squeue` prints the file `queue`, `scancel` puts `after` in its place, then nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir()
        self._script("squeue", "cat queue; if [ -e after ]; then mv after queue; fi")
        self._script("scancel", 'echo "$@" >>cancelled; mv then queue 2>/dev/null || : >queue')
        self.show()

    def _script(self, name: str, text: str) -> None:
        program = self.programs / name
        program.write_text(f"#!/bin/sh\ncd '{self.folder}'\n{text}\n")
        program.chmod(0o755)

    def show(self, *rows: str, file: str = "queue") -> None:
        (self.folder / file).write_text("".join(f"{row}\n" for row in rows))

    def fail(self, program: str) -> None:
        self._script(program, "echo 'slurm_load_jobs error:\n Unable to contact controller' >&2; exit 1")

    @property
    def cancelled(self) -> list[str]:
        path = self.folder / "cancelled"
        return path.read_text().split() if path.exists() else []


def row(number: str, state: str = "RUNNING", name: str = RUN, folder: str | None = None, comment: str = "") -> str:
    """A row of squeue as it is asked for."""
    return f"{number}|{state}|{name}|{folder or os.getcwd()}|{comment or 'rule_capture_wildcards_target_a'}"


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """An empty queue, seen from a folder with a `|` in its name in which a killed run left its lock."""
    monkeypatch.setattr(slurm, "POLL_S", 0.01)
    (tmp_path / "slurm").mkdir()
    made = Queue(tmp_path / "slurm")
    here = tmp_path / "a|b"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", f"{made.programs}:{os.environ['PATH']}")
    runlock.LOCKS.mkdir(parents=True)
    (runlock.LOCKS / "0.input.lock").write_text("x")
    return made


def locked() -> bool:
    return any(runlock.LOCKS.iterdir())


def test_jobs_of_a_killed_run_are_cancelled_and_named_and_nobody_elses_are(queue: Queue, capsys):
    queue.show(
        row("11"), row("12", "PENDING", f"mine_{RUN}", comment="rule_train|x"), row("13_[1-3]", "SUSPENDED"),
        row("14", name="wrap"), row("15", folder="/elsewhere"), row("16", folder=f"{os.getcwd()}/models"), "nonsense",
    )  # fmt: skip
    runlock.main()
    assert queue.cancelled == ["11", "12", "13_[1-3]"] and not locked()
    first, second = capsys.readouterr().err.splitlines()
    jobs = "11 (capture, running), 12 (train|x, pending), 13_[1-3] (capture, suspended)"
    assert first == f"cancelled jobs {jobs} of a run that was killed"
    assert second.startswith("let go of the lock")


def test_a_cancelled_job_is_waited_for_until_its_processes_are_gone(queue: Queue):
    queue.show(row("11"))
    queue.show(row("11", "COMPLETING"), file="then")
    seen = []
    look = slurm.jobs_here
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slurm, "jobs_here", lambda: seen.append(look()) or seen[-1])
        patch.setattr(slurm.time, "sleep", lambda _: queue.show())
        runlock.main()
    assert [[job.state for job in jobs] for jobs in seen] == [["RUNNING"], ["COMPLETING"], []]


@pytest.mark.parametrize("state", ["COMPLETING", "RUNNING"])
def test_a_job_that_does_not_end_keeps_the_lock_and_is_named(queue: Queue, monkeypatch, state: str):
    monkeypatch.setattr(slurm, "END_LIMIT_S", 0.05)
    queue.show(row("11"))
    queue.show(row("11", state), file="then")
    with pytest.raises(UserError, match=rf"^SLURM: job 11 \(capture, {state.lower()}\) did not end\. Fix: "):
        runlock.main()
    assert locked()


def test_a_refused_cancellation_is_told_in_one_line_and_keeps_the_lock(queue: Queue):
    queue.show(row("11"))
    queue.fail("scancel")
    with pytest.raises(UserError, match=r"^scancel: slurm_load_jobs error: Unable to contact controller\. Fix: "):
        runlock.main()
    assert locked()


def test_a_live_run_keeps_its_jobs_but_a_step_in_a_job_is_no_run(queue: Queue):
    Path("snakemake").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    queue.show(row("11"))
    for words, cancelled in (((), []), (("--mode", "remote"), ["11"])):
        run = subprocess.Popen([sys.executable, "snakemake", *words], stdout=subprocess.PIPE)
        try:
            run.stdout.readline()
            with pytest.raises(UserError, match=f"wait for process {run.pid}" if not words else r"harness\.runlock"):
                runlock.begin("slurm")
            runlock.main()
            assert queue.cancelled == cancelled and locked() is not bool(cancelled)
        finally:
            run.kill()
            run.communicate()


def test_without_slurm_only_the_lock_is_let_go_of(queue: Queue, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(queue.folder))
    runlock.main()
    assert not locked() and "cancelled" not in capsys.readouterr().err
    runlock.begin(None)


def test_a_slurm_that_does_not_answer_is_in_the_way_only_where_it_may_have_jobs(queue: Queue):
    queue.fail("squeue")
    runlock.begin(None)
    runlock.begin("cluster-generic")  # Kubernetes, on a machine that has SLURM's programs for some other reason
    runlock.main()
    runlock.LOCKS.mkdir(parents=True, exist_ok=True)
    (runlock.LOCKS / "0.input.lock").touch()
    with pytest.raises(UserError, match=r"^squeue: .*Unable to contact controller\. Fix: "):
        runlock.begin("slurm")
    runlock.CLUSTER_RUN.write_text(f"{socket.gethostname()} slurm")
    with pytest.raises(UserError, match=r"^squeue: "):
        runlock.main()
    assert locked()
    runlock.CLUSTER_RUN.unlink()
    runlock.main()
    assert not locked()


def test_a_persons_own_choice_of_states_hides_no_job(queue: Queue, monkeypatch):
    queue._script("squeue", '[ -n "$SQUEUE_STATES" ] || cat queue')
    queue.show(row("11"))
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    assert [job.number for job in slurm.jobs_here()] == ["11"]


def test_a_run_that_may_live_on_another_machine_keeps_lock_and_jobs(queue: Queue):
    queue.show(row("11"))
    runlock.CLUSTER_RUN.write_text("login1 slurm\n")
    for call in (runlock.main, lambda: runlock.begin("slurm"), lambda: runlock.begin(None)):
        with pytest.raises(UserError, match=r"was started on login1 and may still live\. Fix: .*delete \.snakemake/"):
            call()
    assert locked() and not queue.cancelled


def test_a_run_begins_beside_no_job_of_another_one(queue: Queue):
    queue.show(row("11", "PENDING"))
    for cluster in ("slurm", None):
        with pytest.raises(
            UserError, match=r"^this folder: another run's job 11 \(capture, pending\) .*harness\.runlock"
        ):
            runlock.begin(cluster)
    assert not runlock.CLUSTER_RUN.exists() and not queue.cancelled


def test_jobs_that_are_about_to_be_gone_are_waited_for_by_the_next_run(queue: Queue):
    queue.show(row("11", "COMPLETING"))
    queue.show(file="after")
    runlock.begin(None)
    assert not (queue.folder / "after").exists()


@pytest.mark.parametrize("end", [0, signal.SIGKILL])
def test_only_a_killed_run_on_a_cluster_leaves_word_of_where_it_lived(queue: Queue, end: int):
    code = f"import os; from harness import runlock; runlock.begin('slurm'); os.kill(os.getpid(), {int(end)})"
    done = subprocess.run([sys.executable, "-c", code], check=False, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == -end
    assert runlock.CLUSTER_RUN.exists() == bool(end)
    if end:
        assert runlock.CLUSTER_RUN.read_text().split() == [socket.gethostname(), "slurm"]
        runlock.main()
        assert not runlock.CLUSTER_RUN.exists() and not locked()
