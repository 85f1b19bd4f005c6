"""What vLLM's CPU build lacks for our drafts, added to the running process; nothing is changed on disk or on CUDA.

`install` is called by `harness.serving.launch` for every server, before vLLM is imported. It adds

- *per-layer context k-norm*, always: the CPU's fused norm takes the first layer's weight for the context keys of every
  layer, so a draft of several layers that writes the verifier's states into its cache would be served wrong without a
  word (`context_norm`);
- *temperature of draft tokens*, always: without it a sampled request (temperature above 0) that drafts on the first
  runner gets noise (`temperature`);
- *places of draft tokens behind images*, always: beside a verifier that reads images the first runner would have drafts
  overwrite their context (`image_positions`);
- *the second model runner*, where the draft asks for it: vLLM serves some drafts on that runner alone, which is written
  in Triton, and the CPU build has no Triton. Triton's interpreter stands in (`interpreter`), and PyTorch replaces every
  kernel that matters, since the interpreter takes a thousand times as long (`replacing`, `kernels`). What is left to
  the interpreter is rare and still right.

`wants_second_runner` decides by the algorithm's `ENGINE_RUNNER`; SPECPROOF_SECOND_RUNNER=1 asks for it whatever is
served (`vllm serve VERIFIER --speculative-config ...`, mixed window layers).

An engine in one's own process, in a test say, gets the same, before anything imports vLLM:

    from harness.serving import cpu_support
    cpu_support.install(second_runner=True)
    from vllm import LLM

Each addition is named in the server's log, in `ServerReport.settings["support"]` and so in server.json. Only the
version that it was written for is served: another one may compute something else under the same names.
"""

import os
import sys
from functools import cache
from importlib import metadata

import algorithms
from harness.errors import UserError
from harness.serving.arguments import draft_kind
from harness.serving.environment import CPU_DISTRIBUTION, is_cpu_build

VLLM_VERSION = "0.32.0"
SECOND_RUNNER = "SPECPROOF_SECOND_RUNNER"
LOG_PREFIX = "Specproof's support for the CPU build: "


def wants_second_runner(model: str) -> bool:
    """Whether `model` is a draft checkpoint that vLLM serves on its second runner only, or the environment says so."""
    if os.environ.get(SECOND_RUNNER) == "1":
        return True
    kind = draft_kind(model)
    return kind in algorithms.NAMES and algorithms.engine_runner(kind) == "second"


def _check_version() -> None:
    found = metadata.version(CPU_DISTRIBUTION)
    if found != VLLM_VERSION:
        raise UserError(
            f"{CPU_DISTRIBUTION} {found}: the support for the CPU build is written for {VLLM_VERSION}. "
            f"Fix: install {CPU_DISTRIBUTION} {VLLM_VERSION} (make setup)"
        )


@cache
def install(second_runner: bool) -> tuple[str, ...]:
    """Add the support to this process; processes forked from it have it too. Repeated calls do nothing more.

    Args:
        second_runner: engines of this process use the second runner, whatever they serve.

    Returns:
        What was added, for people; empty where vLLM is not its CPU build.

    Raises:
        UserError: another version of vLLM.
        RuntimeError: the second runner is asked for after vLLM was imported.
    """
    if not is_cpu_build():
        return ()
    _check_version()
    added = []
    if second_runner:
        from harness.serving.cpu_support import interpreter

        if "vllm" in sys.modules:
            raise RuntimeError("install(second_runner=True) must come before vllm is imported")
        interpreter.stand_in()
        added.append("second model runner on Triton's interpreter")
        from harness.serving.cpu_support import replacing

        added.append(f"{replacing.replace_kernels()} kernels in PyTorch")
    from harness.serving.cpu_support import context_norm, image_positions, temperature

    context_norm.repair()
    temperature.repair()
    image_positions.repair()
    return (*added, "per-layer context k-norm", "temperature of draft tokens", "places of draft tokens behind images")
