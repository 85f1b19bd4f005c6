"""Ctrl-C while a command still imports what it needs: one line and exit code 130, as later.

Installed by `harness/__init__.py` before anything large; `harness.errors.run_command` takes over from it.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED_EXIT_CODE = 130
SAID = "interrupted; finished work is kept, run the same command to go on"
PACKAGES = ("harness", "reports")
SERVER = "harness.serving.launch"  # vLLM's command line, with handlers of its own


def _end(number: int, frame: FrameType | None) -> None:
    """End at once: nothing is open yet, and an exception could be swallowed by a library's import."""
    os.write(2, f"{SAID}\n".encode())
    os._exit(INTERRUPTED_EXIT_CODE)


def _is_command() -> bool:
    """Whether this process was started as `python -m` with one of our modules."""
    words = sys.orig_argv
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    return module.partition(".")[0] in PACKAGES and module != SERVER


def watch() -> None:
    """End on Ctrl-C with one line until `hand_over`; not in other programs, nor where Ctrl-C is ignored."""
    if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def hand_over() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again, if `watch` changed that."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
