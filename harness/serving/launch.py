"""`vllm serve ...`, started faster: `python -m harness.serving.launch serve MODEL ...` runs vLLM's own command line.

Called by `running_server`. What is computed is the same; on CPU these differ from `vllm`:
- the engine process is forked from this one, which has imported everything; vLLM would start a fresh one that imports
  it all again, and another to look at the model's class;
- large libraries that vLLM's dependencies import if they can, and that serving does not use, are left out;
- no process outlives its parent, however the parent ends;
- `cpu_support` adds what the CPU build lacks for our drafts, and says so first in the log.
"""

import gc
import multiprocessing
import os
import sys

from harness.errors import USER_ERROR_EXIT_CODE, UserError
from harness.orphans import die_with_parent
from harness.serving import cpu_support
from harness.serving.environment import is_cpu_build

UNUSED_LIBRARIES = ("chardet", "pandas", "scipy", "sklearn")


def _import_engine(second_runner: bool) -> None:
    """Import here what the server and the engine need, without the garbage collector walking it all again and again."""
    for library in UNUSED_LIBRARIES:
        sys.modules[library] = None  # type: ignore[assignment]  # "not installed" to whoever asks
    gc.disable()
    added = cpu_support.install(second_runner)
    print(f"{cpu_support.LOG_PREFIX}{'; '.join(added)}", flush=True)
    import vllm.entrypoints.cli.main
    import vllm.entrypoints.cli.serve
    import vllm.v1.engine.async_llm
    import vllm.v1.engine.core
    import vllm.v1.worker.cpu_worker  # noqa: F401

    gc.freeze()
    gc.enable()


def _fork_engine() -> None:
    """Let vLLM fork its engine process, and look at model classes in this process: no GPU can be touched by either."""
    import vllm.model_executor.models.registry
    import vllm.v1.engine.utils

    vllm.v1.engine.utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    vllm.model_executor.models.registry._run_in_subprocess = lambda inspect: inspect()


def main() -> None:
    """Run vLLM's command line with this process's arguments."""
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    if is_cpu_build():
        model = "".join(sys.argv[2:3])
        _import_engine(cpu_support.wants_second_runner(model))
        _fork_engine()
    from vllm.entrypoints.cli.main import main as vllm_main

    sys.argv[0] = "vllm"
    vllm_main()


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR_EXIT_CODE)
