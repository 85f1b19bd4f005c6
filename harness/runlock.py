"""Whether a run works in this folder, and what a killed one left: its lock, and its jobs on a cluster.

Snakemake's lock files name no holder, so that is looked up among the processes. `python -m harness.runlock`, which
`make reproduce` calls first, cancels jobs of SLURM and lets go of the lock where the run is dead. The Snakefile calls
`begin`: no run starts beside jobs of another one. The doctor names the holder.
"""

import atexit
import os
import socket
import sys
from pathlib import Path

import psutil

from harness import slurm
from harness.errors import UserError, run_command
from harness.files import replacing

LOCKS = Path(".snakemake/locks")
# The machine on which a run that submits jobs was started, as long as it did not come to its end: from another one,
# its process cannot be seen. After its name that of the cluster, as Snakemake calls it.
CLUSTER_RUN = Path(".snakemake/cluster_run")


def _family() -> set[int]:
    """This process and those that started it: a run that looks for a holder is not its own holder."""
    own = psutil.Process()
    return {own.pid, *(parent.pid for parent in own.parents())}


def _is_run(words: list[str]) -> bool:
    """Whether a command line is Snakemake's, and not that with which it runs one step in a job."""
    return any(Path(word).name == "snakemake" for word in words[:3]) and "--mode" not in words


def holder_pid() -> int | None:
    """Process id of a live Snakemake run in the current folder, or None."""
    here, family = os.getcwd(), _family()
    for process in psutil.process_iter(["cmdline", "cwd"]):
        running = _is_run(process.info["cmdline"] or [])
        if running and process.info["cwd"] == here and process.pid not in family:
            return process.pid
    return None


def _cluster_run() -> tuple[str, str]:
    """Machine and cluster of the run that `CLUSTER_RUN` tells of; this machine and nothing without it."""
    words = CLUSTER_RUN.read_text().split() if CLUSTER_RUN.exists() else []
    return (words or [socket.gethostname()])[0], words[1] if len(words) > 1 else ""


def _refuse_elsewhere() -> None:
    host = _cluster_run()[0]
    if host != socket.gethostname():
        raise UserError(
            f"this folder: a run with jobs on a cluster was started on {host} and may still live. Fix: give the "
            f"command there; where it is dead for certain, delete {CLUSTER_RUN} and call python -m harness.runlock"
        )


def _jobs(cluster: str | None = None) -> list[slurm.Job]:
    """Jobs of SLURM in this folder. A SLURM that does not answer is in the way only where it may have some."""
    try:
        return slurm.settled_jobs()
    except UserError:
        if slurm.CLUSTER in (cluster, _cluster_run()[1]):
            raise
        return []


def begin(cluster: str | None) -> None:
    """Refuse to run beside jobs of another run; else note where this one lives, until it ends.

    Called once Snakemake's lock is taken, before the first job.

    Args:
        cluster: what steps become jobs of, as Snakemake calls it; None where they run here.

    Raises:
        UserError: jobs of another run work in this folder, or that cannot be known.
    """
    _refuse_elsewhere()
    jobs = _jobs(cluster)
    if jobs:
        pid = holder_pid()
        fix = (
            f"wait for process {pid}, or use a second checkout"
            if pid
            else "python -m harness.runlock, which cancels what a killed run left; finished work is kept"
        )
        raise UserError(f"this folder: another run's {slurm.named(jobs)} may write what this one writes. Fix: {fix}")
    CLUSTER_RUN.unlink(missing_ok=True)
    if cluster:
        with replacing(CLUSTER_RUN) as partial:
            partial.write_text(f"{socket.gethostname()} {cluster}\n")
        atexit.register(CLUSTER_RUN.unlink, missing_ok=True)  # any end but a kill: its jobs are over, or cancelled


def release_stale() -> bool:
    """Remove the lock files of a run that is dead; False where a live run holds them or there are none."""
    held = list(LOCKS.glob("*"))
    if not held or holder_pid():
        return False
    for lock in held:
        lock.unlink(missing_ok=True)
    return True


def main() -> None:
    if holder_pid():
        return
    _refuse_elsewhere()
    jobs = _jobs()
    if jobs:
        slurm.cancel(jobs)
        print(f"cancelled {slurm.named(jobs)} of a run that was killed", file=sys.stderr)
    if release_stale():
        print("let go of the lock of a run that was killed; finished work is kept", file=sys.stderr)
    CLUSTER_RUN.unlink(missing_ok=True)


if __name__ == "__main__":
    run_command(main)
