"""The one exception for mistakes a user can mend, and the way every command ends on it.

Called by every `python -m harness.<step>` through `run_command`.
"""

import sys
from collections.abc import Callable
from typing import NoReturn

USER_ERROR_EXIT_CODE = 2


class UserError(Exception):
    """A fault in what the user gave: the message is one line that names the thing and the fix."""


def run_command(main: Callable[[], int | None]) -> NoReturn:
    """Run a command line's `main` and exit: 0 or its return value, 2 with one line on a `UserError`.

    Ctrl-C exits 130 and a full disk 2, both with one line. Any other exception is a defect of ours and keeps its
    traceback.
    """
    try:
        sys.exit(main() or 0)
    except UserError as error:
        message = str(error)
    except KeyboardInterrupt:
        print("interrupted; finished work is kept, run the same command to go on", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        if error.errno != 28:  # ENOSPC
            raise
        message = (
            f"{error.filename or 'output'}: the disk is full. Fix: free some space and run again; finished work is kept"
        )
    print(f"error: {message}", file=sys.stderr)
    sys.exit(USER_ERROR_EXIT_CODE)
