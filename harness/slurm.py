"""Jobs of SLURM that a Snakemake of this folder submitted, and how they are ended.

Called by `harness.runlock`: a run that is killed with SIGKILL leaves its jobs behind. Snakemake's plugin starts a job
in the folder of its run, names it by the run's UUID and writes the step into its comment.
"""

import os
import re
import subprocess
import time
from dataclasses import dataclass

from harness.errors import UserError

CLUSTER = "slurm"  # as Snakemake calls it
RUN_NAME = re.compile(r"([\w-]{1,50}_)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # with the plugin's own prefix
FORMAT = "%i|%T|%j|%Z|%k"  # the comment last: it may hold anything
ENDING = "COMPLETING"  # cancelled or done; its processes may live until the node has seen to them
POLL_S = 1.0
END_LIMIT_S = 120.0  # a cluster gives processes 30 s by default before it kills them, and 60 s more to a stubborn one
ANSWER_LIMIT_S = 60.0


@dataclass(frozen=True)
class Job:
    """A job that is not over. `number` is SLURM's id, with the tasks where it is an array; `step` as commented."""

    number: str
    state: str
    step: str

    def __str__(self) -> str:
        return f"{self.number} ({self.step}, {self.state.lower()})"


def _call(*words: str) -> str | None:
    """What a program of SLURM prints; None where it is not installed.

    Raises:
        UserError: it failed, or gave no answer.
    """
    # A person's own choice of users or states would hide jobs.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env=environment, timeout=ANSWER_LIMIT_S
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        raise UserError(f"{words[0]}: no answer in {ANSWER_LIMIT_S:.0f} s. Fix: run again when SLURM answers") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise UserError(f"{words[0]}: {said}. Fix: mend what it names, then run again")
    return done.stdout


def jobs_here() -> list[Job]:
    """Jobs, anybody's, of a Snakemake of the current folder that are not over; none where there is no SLURM.

    Raises:
        UserError: squeue failed.
    """
    here, jobs = f"{os.getcwd()}|", []
    for row in (_call("squeue", "--noheader", f"--format={FORMAT}") or "").splitlines():
        number, state, name, rest = [*row.split("|", 3), "", "", ""][:4]
        if RUN_NAME.fullmatch(name) and rest.startswith(here):
            step = rest.removeprefix(here).removeprefix("rule_").partition("_wildcards_")[0]
            jobs.append(Job(number, state, step))
    return jobs


def settled_jobs() -> list[Job]:
    """`jobs_here`, once those that are being ended are gone, or will not go within `END_LIMIT_S`."""
    limit = time.monotonic() + END_LIMIT_S
    while (jobs := jobs_here()) and all(job.state == ENDING for job in jobs) and time.monotonic() < limit:
        time.sleep(POLL_S)
    return jobs


def cancel(jobs: list[Job]) -> None:
    """Cancel jobs of this folder and wait until their processes have ended.

    Raises:
        UserError: one did not end, or a program of SLURM failed.
    """
    _call("scancel", *(job.number for job in jobs))
    left = settled_jobs()
    if left:
        raise UserError(f"SLURM: {named(left)} did not end. Fix: end what squeue shows of this folder, then run again")


def named(jobs: list[Job]) -> str:
    """Jobs for a message."""
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(map(str, jobs))}"
