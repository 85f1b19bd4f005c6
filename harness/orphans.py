"""Processes that must not outlive the one that started them. Called by served engines and by trainings of several."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1  # of prctl(2)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux). Called by the child itself."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
