"""`vllm serve ...`, started faster: `python -m harness.serving.launch serve MODEL ...` runs vLLM's own command line.

Called by `running_server`. Two things differ from `vllm`, neither in what is computed. On CPU the engine process is
forked from this one, which has imported everything already; vLLM would start a fresh one that imports it all again.
And no process outlives its parent, however the parent ends.
"""

import multiprocessing
import os
import sys

from harness.serving.environment import is_cpu_build
from harness.serving.processes import die_with_parent


def _fork_engine() -> None:
    """Import what the engine process needs here, and let vLLM fork that process instead of spawning it."""
    import vllm.v1.engine.core
    import vllm.v1.engine.utils
    import vllm.v1.worker.cpu_worker

    vllm.v1.engine.utils.get_mp_context = lambda: multiprocessing.get_context("fork")


def main() -> None:
    """Run vLLM's command line with this process's arguments."""
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    if is_cpu_build():
        _fork_engine()
    from vllm.entrypoints.cli.main import main as vllm_main

    sys.argv[0] = "vllm"
    vllm_main()


if __name__ == "__main__":
    main()
