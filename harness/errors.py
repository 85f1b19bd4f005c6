"""The one exception for mistakes a user can mend, and the way every command ends on it.

Called by every `python -m harness.<step>` through `run_command`.
"""

import errno
import re
import sys
from collections.abc import Callable
from typing import NoReturn

from harness.interrupts import INTERRUPTED_EXIT_CODE, SAID, hand_over
from harness.orphans import die_with_run

USER_ERROR_EXIT_CODE = 2
TEMPORARY = re.compile(r"\.([^/]+)\.[0-9A-Za-z]*-\d+\.partial$")  # as harness.files names what is not whole yet
# What the system refuses, and the fix. Inputs end here and, where no writer of ours says more, outputs.
REFUSED = {
    errno.ENOTDIR: "give a folder where a folder is asked for",
    errno.EISDIR: "give a file where a file is asked for",
    errno.EEXIST: "give another path, or move away what is there",
    errno.EACCES: "allow access to it, or give another path",
    errno.EPERM: "allow access to it, or give another path",
    errno.EROFS: "give a path that can be written",
}


class UserError(Exception):
    """A fault in what the user gave: the message is one line that names the thing and the fix."""


def _outside_fault(error: Exception) -> str | None:
    """One line for what the machine refuses, None for a defect of ours."""
    place = TEMPORARY.sub(r"\1", str(getattr(error, "filename", None) or "output"))
    # safetensors wraps the system's error in an exception of its own.
    if getattr(error, "errno", None) == errno.ENOSPC or f"os error {errno.ENOSPC}" in str(error):
        return f"{place}: the disk is full. Fix: free some space and run again; finished work is kept"
    if isinstance(error, OSError) and error.errno in REFUSED:
        return f"{place}: {(error.strerror or 'refused').lower()}. Fix: {REFUSED[error.errno]}"
    return None


def run_command(main: Callable[[], int | None]) -> NoReturn:
    """Run a command line's `main` and exit: 0 or its return value, 2 with one line on a `UserError`.

    Ctrl-C exits 130; a full disk and a path that the system refuses exit 2, all with one line. Any other exception is a
    defect of ours and keeps its traceback.
    """
    try:
        hand_over()
        die_with_run()
        sys.exit(main() or 0)
    except UserError as error:
        message = str(error)
    except KeyboardInterrupt:
        print(SAID, file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT_CODE)
    except Exception as error:
        refused = _outside_fault(error)
        if refused is None:
            raise
        message = refused
    print(f"error: {message}", file=sys.stderr)
    sys.exit(USER_ERROR_EXIT_CODE)
