"""Kills of a whole run at random moments, and what must be true after each. Used by test_kills.

A run is Snakemake with all it started, killed at once with SIGKILL, as a machine that goes down does. What it had
finished by then, by Snakemake's own notes, must never be made again; nothing that it started may live on.
"""

import os
import random
import signal
import subprocess
import sys
import time
from base64 import urlsafe_b64decode
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from harness.files import file_sha256

GONE_S = 20.0  # a killed server's engine notices within seconds
RUN_S = 1200.0


@dataclass(frozen=True)
class Job:
    """A job of an undisturbed run: its log, which appears when it starts, and the seconds it took."""

    log: str
    seconds: float


@dataclass
class Killed:
    """What happened to a run that was killed again and again."""

    moments: list[tuple[str, float]] = field(default_factory=list)  # job that was under way, seconds into it
    remade: list[str] = field(default_factory=list)
    survivors: list[str] = field(default_factory=list)


def notes(root: Path, kind: str) -> set[str]:
    """Paths of which Snakemake keeps a note of this kind: `metadata` of finished files, `incomplete` ones."""
    folder = root / ".snakemake" / kind
    names = ["".join(part.removeprefix("@") for part in path.relative_to(folder).parts)
             for path in folder.rglob("*") if path.is_file()]  # fmt: skip
    return {urlsafe_b64decode(name).decode() for name in names if name != "migration_underway"}


def finished(root: Path) -> dict[str, tuple[int, str]]:
    """Every file of a job that Snakemake noted as done: time of change and hash."""
    done = notes(root, "metadata") - notes(root, "incomplete")
    paths = {name: root / name for name in done if (root / name).is_file()}
    return {name: (path.stat().st_mtime_ns, file_sha256(path)) for name, path in paths.items()}


def jobs_of(root: Path, target: str) -> list[Job]:
    """The jobs of a finished run in the order of their end, from the costs that Snakemake kept."""
    costs = root / "results" / target / "benchmarks"
    logs = {path: f"logs/{target}/{path.relative_to(costs).with_suffix('.log')}" for path in costs.rglob("*.tsv")}
    for path in (root / "results/benchmarks").glob("verifier_*.tsv"):
        logs[path] = f"logs/{path.stem.removeprefix('verifier_')}/verifier.log"
    ended = sorted(logs, key=lambda path: path.stat().st_mtime_ns)
    return [Job(logs[path], float(path.read_text().splitlines()[-1].split()[0])) for path in ended]


def started(root: Path) -> set[str]:
    """Processes that work in `root`, which is all that a run there starts."""
    found = set()
    for process in psutil.process_iter(["cwd", "cmdline", "status"]):
        if process.info["cwd"] == str(root) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.add(f"{process.pid}: {' '.join(process.info['cmdline'] or [])[:200]}")
    return found


class Run:
    """One call of Snakemake in `root`, in a session of its own; its output goes to `snakemake.out`."""

    def __init__(self, root: Path, target: str, **environment: str) -> None:
        self.root, self.since_ns = root, time.time_ns()
        # As `make reproduce` does: the lock of a run that was killed is let go of.
        subprocess.run([sys.executable, "-m", "harness.runlock"], cwd=root, check=True, stderr=subprocess.DEVNULL)
        with (root / "snakemake.out").open("a") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "snakemake", "--cores", "all", target], cwd=root, env=os.environ | environment,
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def begun(self, logs: set[str]) -> set[str]:
        """Those of these logs that this run began."""
        return {log for log in logs if (path := self.root / log).exists() and path.stat().st_mtime_ns >= self.since_ns}

    def wait_for(self, logs: set[str], most_s: float = RUN_S) -> str | None:
        """A log of these that this run began; None if it ended before that, or after `most_s` seconds."""
        limit = time.monotonic() + most_s
        while self.process.poll() is None and time.monotonic() < limit:
            if found := self.begun(logs):
                return found.pop()
            time.sleep(0.05)
        return None

    def kill(self) -> set[str]:
        """Kill the whole group; returns what of it still lives some seconds later."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        limit = time.monotonic() + GONE_S
        while (alive := started(self.root)) and time.monotonic() < limit:
            time.sleep(0.1)
        return alive

    def finish(self) -> None:
        """Wait for a good end."""
        code = self.process.wait(timeout=RUN_S)
        assert code == 0, (self.root / "snakemake.out").read_text()[-4000:]


def run_with_kills(root: Path, target: str, jobs: list[Job], kills: int, draw: random.Random) -> Killed:
    """Kill a run `kills` times, each time in a job drawn from `jobs` (in their order) at a moment drawn from its time.

    Every job is drawn once before one is drawn again. A job may be drawn that another kill let finish: then a later one
    is hit. One that takes less time than it took undisturbed is killed when the next one starts; so the last job, which
    has no next, is not drawn. The last run goes to its end.
    """
    told, seconds = Killed(), {job.log: job.seconds for job in jobs}
    can_be_hit = range(max(0, len(jobs) - 1))
    once = draw.sample(can_be_hit, min(kills, len(can_be_hit)))
    for at in sorted([*once, *draw.choices(can_be_hit, k=kills - len(once))]):
        before, run = finished(root), Run(root, target)
        log = run.wait_for({job.log for job in jobs[at:]})
        began_s = time.monotonic()
        run.wait_for(seconds.keys() - run.begun(set(seconds)), draw.uniform(0, seconds.get(log, 0.0)))
        assert run.process.poll() is None, "the run ended before it was killed often enough"
        told.survivors += run.kill()
        told.moments.append((log, round(time.monotonic() - began_s, 1)))
        told.remade += _remade(root, before)
    before = finished(root)
    Run(root, target).finish()
    told.remade += _remade(root, before)
    return told


def _remade(root: Path, before: dict[str, tuple[int, str]]) -> list[str]:
    now = finished(root)
    return [name for name, kept in before.items() if now.get(name) != kept]


def leftovers(root: Path) -> list[str]:
    """What a finished run must not leave: half-written files, locks, files that Snakemake takes for unfinished."""
    partial = [str(path.relative_to(root)) for path in root.rglob("*.partial")]
    locks = [str(path.relative_to(root)) for path in (root / ".snakemake/locks").glob("*")]
    return [*partial, *locks, *notes(root, "incomplete"), *started(root)]
