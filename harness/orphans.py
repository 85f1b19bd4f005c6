"""Processes that must not outlive the one that started them: served engines and trainings of several with their
starter, and every step with the Snakemake that runs it, so that a rerun after `kill -9` never works beside one.
"""

import ctypes
import os
import select
import signal
import threading

PR_SET_PDEATHSIG = 1  # of prctl(2)
RUN_PID = "SPECPROOF_RUN_PID"  # set by the Snakefile for its steps


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux). Called by the child itself."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_run() -> None:
    """End this process, at once, when the Snakemake that runs it as a step ends (Linux); elsewhere do nothing.

    Between both stands a shell, so that the kernel's signal to children does not reach this far.
    """
    pid = os.environ.get(RUN_PID)
    if pid is None:
        return
    try:
        run = os.pidfd_open(int(pid))
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
    except (OSError, AttributeError):
        return
    threading.Thread(target=_end_after, args=(run,), daemon=True, name="die_with_run").start()


def _end_after(process: int) -> None:
    select.select([process], [], [])  # readable once the process has ended
    os.kill(os.getpid(), signal.SIGKILL)
