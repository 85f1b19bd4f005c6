"""Trainings in forked processes, so that PyTorch is imported once, each killed at a moment of choice. Used by conftest.

Run as a program it reads a JSON line for each training: `argv` of `python -m harness.training`; `folder` whose files
are watched; and, each if wanted, `kill_at`: SIGKILL just before this change of a file (from 1), `kill_s`: SIGKILL after
so many seconds, `threads`. It answers with a line: exit `status` (None: killed), `changes` of files, `seconds`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # the first optimiser would import it, for two seconds in every child

from harness.errors import run_command
from harness.training.__main__ import main

CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.chmod", "shutil.rmtree"}


def tear(folder: str) -> None:
    """Halve what is being written: a process may die in the middle of it."""
    for path in Path(folder).rglob("*"):
        if ".partial" in str(path) and path.is_file():
            os.truncate(path, path.stat().st_size // 2)


def watch(folder: str, kill_at: int | None) -> list[int]:
    """Count the changes of files in `folder`, and die at one of them."""
    seen = [0]

    def hook(event: str, arguments: tuple) -> None:
        if event in CHANGES and arguments and str(arguments[0]).startswith(folder):
            seen[0] += 1
            if seen[0] == kill_at:
                tear(folder)
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return seen


def child(job: dict, report: int) -> None:
    """One training from its command line to its exit code."""
    said = os.open(f"{job['folder']}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.argv = ["harness.training", *job["argv"]]
    torch.set_num_threads(job.get("threads", 1))
    seen = watch(f"{job['folder']}/", job.get("kill_at"))
    try:
        run_command(main)
    except SystemExit as end:
        sys.stderr.flush()
        os.write(report, json.dumps({"status": end.code, "changes": seen[0]}).encode())
        os._exit(0)


def one(job: dict) -> dict:
    """Fork, kill where that is wanted, wait."""
    started, (reading, writing) = time.monotonic(), os.pipe()
    pid = os.fork()
    if pid == 0:
        child(job, writing)
    os.close(writing)
    if "kill_s" in job:
        time.sleep(job["kill_s"])
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(reading) as report:
        told = report.read()
    os.waitpid(pid, 0)
    found = json.loads(told) if told else {"status": None, "changes": None}
    return found | {"seconds": time.monotonic() - started}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(one(json.loads(line))), flush=True)
