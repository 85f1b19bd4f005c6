"""`python -m harness.training.launch --processes N ...`: the training command in N processes here, one a GPU.

Called by the rule `train`. With one process it becomes that command. With several it is `torchrun --standalone
--nproc-per-node N -m harness.training ...` over the loopback interface, with the training's own last line and exit
code. For several machines start `torchrun` there: many_gpus.md.
"""

import argparse
import os
import signal
import sys
import uuid

from harness.errors import UserError, run_command

# Read when torch loads: the training says itself what went wrong.
os.environ.setdefault("LOGLEVEL", "CRITICAL")
LOOPBACK = "127.0.0.1"
KILLED = 128  # plus the signal is the exit code, as a shell says it


def _arguments() -> tuple[int, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m harness.training.launch",
        description="Train one draft in several processes; every further argument is one of harness.training.",
    )
    parser.add_argument("--processes", required=True, type=int, help="1 or more; on a GPU machine one for each GPU")
    known, further = parser.parse_known_args()
    if known.processes < 1:
        raise UserError(f"--processes = {known.processes}: nobody would train. Fix: use 1 or more")
    return known.processes, further


def main() -> int:
    """Start the processes, wait for them; returns their exit code."""
    processes, further = _arguments()
    if processes == 1:
        os.execv(sys.executable, [sys.executable, "-m", "harness.training", *further])
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // processes)))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")  # a crash in native code then says where Python was
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, run_id=uuid.uuid4().hex, rdzv_backend="c10d",
        rdzv_endpoint=f"{LOOPBACK}:0", local_addr=LOOPBACK, max_restarts=0, monitor_interval=0.2,
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", "harness.training", *further)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        return code if code > 0 else KILLED - code
    except SignalException as error:
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        return KILLED + error.sigval
    return 0


if __name__ == "__main__":
    run_command(main)
