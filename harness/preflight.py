"""`python -m harness.preflight NAME [--scale SCALE]`: whether this machine can run a target at all, in numbers.

Called by `make reproduce`, and by the Snakefile when a run starts, before its first job. What a person can mend in a
minute, such as other programs that hold memory, is `harness.doctor`'s; here is what only another machine gives.
"""

import argparse
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.config import Reproduction, load_reproduction
from harness.errors import UserError, run_command
from harness.planning import plan_of
from harness.progress import log
from harness.recipes import REPRODUCTIONS, SCALES, read_recipe, scales_of
from harness.sections.verifier import Needs
from harness.serving.environment import is_cpu_build
from harness.training import trackers

GB = 1e9
# A device of "80 GB" reports a little less.
REPORTED_SHARE = 0.95


@dataclass(frozen=True)
class Found:
    """What the machine has. Memory is all of it, whatever holds some now; disk counts what the run already wrote."""

    memory_gb: float
    disk_gb: float
    gpu_memory_gb: list[float]
    cuda_build: bool


def _memory_bytes() -> int:
    """All memory, or the control group's limit where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return total if text == "max" else min(total, int(text))


def _gpu_memory_gb() -> list[float]:
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return []
    # In MiB.
    return [int(line) * 2**20 / GB for line in done.stdout.split()] if done.returncode == 0 else []


def _written_bytes(*folders: Path) -> int:
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def look(run: Reproduction) -> Found:
    """The machine as `run` would find it in the current folder."""
    written = _written_bytes(Path("results", run.target), Path("models", run.model))
    return Found(
        _memory_bytes() / GB, (shutil.disk_usage(".").free + written) / GB, _gpu_memory_gb(), not is_cpu_build()
    )


def shortfalls(needs: Needs, found: Found) -> Iterator[str]:
    """One line for each thing that is short, with both numbers."""
    if len(found.gpu_memory_gb) < needs.gpus:
        yield f"GPUs: {needs.gpus} needed, {len(found.gpu_memory_gb)} found"
    fitting = sum(memory >= needs.gpu_memory_gb * REPORTED_SHARE for memory in found.gpu_memory_gb)
    if len(found.gpu_memory_gb) >= needs.gpus > fitting:
        told = f"{fitting} found, the largest has {max(found.gpu_memory_gb):.0f} GB"
        yield f"GPU memory: {needs.gpus} of {needs.gpu_memory_gb:.0f} GB needed, {told}"
    if needs.gpus and not found.cuda_build:
        yield "vLLM: its CUDA build needed, its CPU build found; `make setup BACKEND=cuda` installs the other"
    if found.memory_gb < needs.memory_gb * REPORTED_SHARE:
        yield f"memory: {needs.memory_gb:.0f} GB needed, {found.memory_gb:.0f} GB found"
    if found.disk_gb < needs.disk_gb:
        yield f"disk: {needs.disk_gb:,.0f} GB needed, {found.disk_gb:,.0f} GB free"


def target_instead(run: Reproduction, folder: Path = REPRODUCTIONS) -> str:
    """The small target that stands for `run` on a small machine: a miniature of its kind, else the embedded default."""
    name = run.needs.instead or run.name
    if run.scale != "mini" and "mini" in scales_of(read_recipe(name, folder)):
        return f"{name}_mini"
    return "smollm2_135m"


def needed(run: Reproduction) -> Needs:
    """What the recipe says it needs, and more where its own settings take more than it says."""
    if run.plan is None:
        return run.needs
    planned = plan_of(run)
    device = "gpu_memory_gb" if run.needs.gpus else "memory_gb"
    takes = {"disk_gb": planned.disk_bytes / GB, device: planned.memory_bytes / GB}
    return run.needs.model_copy(update={key: max(getattr(run.needs, key), value) for key, value in takes.items()})


def require(run: Reproduction, folder: Path = REPRODUCTIONS) -> None:
    """Raises `UserError` with everything that is short, and what can be run here instead."""
    trackers.require(run.training.log_to)
    needs = needed(run)
    short = list(shortfalls(needs, look(run)))
    if short:
        lines = "".join(f"\n  {line}" for line in short)
        raise UserError(
            f"reproduce_{run.target}: this machine cannot run it:{lines}\n"
            f"Fix: use a machine with {needs.text}; "
            f"here, run: snakemake --cores all reproduce_{target_instead(run, folder)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.preflight", description=__doc__)
    parser.add_argument("name", help="the reproduction, a folder under reproductions/")
    parser.add_argument("--scale", choices=SCALES, default="full", help="default full")
    arguments = parser.parse_args()
    run = load_reproduction(arguments.name, arguments.scale)
    require(run)
    log(f"reproduce_{run.target}: this machine has what it needs: {run.needs.text}")


if __name__ == "__main__":
    run_command(main)
