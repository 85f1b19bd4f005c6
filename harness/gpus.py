"""`python -m harness.gpus COUNT COMMAND ...`: become COMMAND, with COUNT GPUs that no other command of ours has.

Called by the rule of every step that uses GPUs, since Snakemake counts them and hands out no ids: two jobs of one GPU
would both land on the first. Here an id is a locked file, held by the process that the command becomes and let go of by
the kernel when it ends, however it ends. Who asks for more than is free waits.

Ids are taken from CUDA_VISIBLE_DEVICES where it is set, as a cluster or a person does, else from what nvidia-smi lists.
A count of 0 changes nothing.
"""

import argparse
import fcntl
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

from harness.errors import UserError, run_command
from harness.progress import log

MASK = "CUDA_VISIBLE_DEVICES"
ID = re.compile(r"\d+|(GPU|MIG)-[\w./-]+")
# A folder of the machine that has the GPUs, never of a shared disk; where users have a /tmp each, give one they share.
FOLDER = "SPECPROOF_GPU_LOCKS"
FOR_ALL_USERS = 0o1777
POLL_S = 0.5


def _listed() -> dict[str, str]:
    """Index to UUID of the machine's GPUs, in nvidia-smi's order; none where there is no such program."""
    command = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return {}
    rows = done.stdout.splitlines() if done.returncode == 0 else []
    return {index.strip(): uuid.strip() for index, _, uuid in (row.partition(",") for row in rows)}


def visible_ids() -> dict[str, str]:
    """GPUs that this process may use: id as CUDA is told it, to the name of its lock.

    Of a mask counts what stands before its first entry that is no id, as CUDA reads it. A lock has the index for its
    name, so that a GPU named by its UUID is the same one.
    """
    listed, mask = _listed(), os.environ.get(MASK)
    if mask is None:
        return {index: index for index in listed}
    ids = list(takewhile(ID.fullmatch, (word.strip() for word in mask.split(","))))
    by_uuid = {name: index for name in ids for index, uuid in listed.items() if uuid.startswith(name)}
    return {name: by_uuid.get(name, name.replace("/", "_")) for name in ids}


def lock_folder() -> Path:
    """Where the locks lie. A job of SLURM has its own: a cluster numbers the GPUs of every job anew."""
    locks = Path(os.environ.get(FOLDER, "/tmp/specproof_gpus"))
    folder = locks / os.environ.get("SLURM_JOB_ID", "machine")
    for path in (locks, folder):
        path.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # made by another user, who opened it to all
            path.chmod(FOR_ALL_USERS)
    return folder


def _open(path: Path) -> int:
    """A file to lock, whoever made it; a lock needs no right to write."""
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)


def _lock(path: Path) -> int | None:
    """The open, locked file; None where somebody holds it."""
    opened = _open(path)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        return None
    return opened


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """One process at a time looks for free ids: of two that each took half of the rest, both would come away empty."""
    opened = _open(folder / "turn")
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def try_lease(ids: Mapping[str, str], count: int, folder: Path) -> dict[str, int]:
    """Lock `count` GPUs of `ids`, or none.

    Args:
        ids: of `visible_ids`. folder: of the locks.

    Returns:
        Open file of each id that is now held; closing it lets go. Empty where too few were free.
    """
    held: dict[str, int] = {}
    with _turn(folder):
        for name, lock in ids.items():
            opened = _lock(folder / lock)
            if opened is not None:
                held[name] = opened
            if len(held) == count:
                return held
        for opened in held.values():
            os.close(opened)
    return {}


def lease(count: int) -> dict[str, int]:
    """Wait until `count` of the visible GPUs are free, and lock them.

    Raises:
        UserError: fewer than that are visible at all.
    """
    ids, folder = visible_ids(), lock_folder()
    if len(ids) < count:
        seen = f"{MASK}={os.environ[MASK]}" if MASK in os.environ else "nvidia-smi lists them"
        raise UserError(
            f"GPUs: {count} asked for, {len(ids)} visible ({seen}). "
            "Fix: give the job more, or lower what the recipe asks for"
        )
    held, waited = try_lease(ids, count, folder), False
    while not held:
        if not waited:
            log(f"waiting for {count} of {len(ids)} GPUs: others use them")
            waited = True
        time.sleep(POLL_S)
        held = try_lease(ids, count, folder)
    return held


def become(command: Sequence[str], count: int) -> NoReturn:
    """Replace this process by `command`, which holds `count` GPUs to its end and sees no others."""
    if count:
        held = lease(count)
        for opened in held.values():
            os.set_inheritable(opened, True)
        os.environ[MASK] = ",".join(held)
        os.environ[FOLDER] = str(lock_folder() / f"of_{os.getpid()}")  # what it starts may lease from these again
        if all(name.isdigit() for name in held):  # CUDA's own order puts the fastest first; nvidia-smi's is this one
            os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        log(f"GPUs of this step: {os.environ[MASK]}")
    try:
        os.execvp(command[0], list(command))
    except FileNotFoundError:
        raise UserError(f"{command[0]}: no such program. Fix: give a command that there is") from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.gpus", description="Run a command with GPUs of its own.")
    parser.add_argument("count", type=int, help="how many it uses; 0 leaves everything as it is")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="program and arguments")
    arguments = parser.parse_args()
    if arguments.count < 0:
        raise UserError(f"count = {arguments.count}: less than none. Fix: give 0 or more")
    if not arguments.command:
        raise UserError("command: none given. Fix: give the program that uses the GPUs, and its arguments")
    become(arguments.command, arguments.count)


if __name__ == "__main__":
    run_command(main)
