"""Whether a run works in this folder: Snakemake's lock files name no holder, so that is looked up among the processes.

Used by the doctor, which names the holder, and by the Makefile, which lets go of a lock whose run was killed.
"""

import os
import sys
from pathlib import Path

import psutil

from harness.errors import run_command

LOCKS = Path(".snakemake/locks")


def _family() -> set[int]:
    """This process and those that started it: a run that looks for a holder is not its own holder."""
    own = psutil.Process()
    return {own.pid, *(parent.pid for parent in own.parents())}


def holder_pid() -> int | None:
    """Process id of a live Snakemake run in the current folder, or None."""
    here, family = os.getcwd(), _family()
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        snakemake = any(Path(word).name == "snakemake" for word in words[:3])
        if snakemake and process.info["cwd"] == here and process.pid not in family:
            return process.pid
    return None


def release_stale() -> bool:
    """Remove the lock files of a run that is dead; False where a live run holds them or there are none."""
    held = list(LOCKS.glob("*"))
    if not held or holder_pid():
        return False
    for lock in held:
        lock.unlink(missing_ok=True)
    return True


def main() -> None:
    if release_stale():
        print("let go of the lock of a run that was killed; finished work is kept", file=sys.stderr)


if __name__ == "__main__":
    run_command(main)
