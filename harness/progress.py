"""Progress that people see and logs can keep: a rich bar on the terminal, plain lines in the log.

A rule sends a command's output to its log file, so the bar goes to the controlling terminal itself, if there is one.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LOG_EVERY_S = 10.0
# Of several processes that do the same work one speaks; the others set this.
SILENT = "SPECPROOF_SILENT"


def log(message: str) -> None:
    """One plain line on stderr with the time of day, flushed at once."""
    if os.environ.get(SILENT):
        return
    print(f"[{time.strftime('%H:%M:%S')}] {message}", file=sys.stderr, flush=True)


def _terminal() -> Console | None:
    if os.environ.get("CI") or os.environ.get(SILENT) or os.environ.get("SPECPROOF_PROGRESS") == "plain":
        return None
    try:
        return Console(file=open("/dev/tty", "w"), force_terminal=True)
    except OSError:
        return None


class Meter:
    """Counts units of work towards `total`; made by `meter`."""

    def __init__(self, title: str, total: int, unit: str, bar: Progress | None) -> None:
        self.title, self.total, self.unit, self.bar = title, total, unit, bar
        self.done, self.note = 0, ""
        self._started = self._logged = time.monotonic()
        self._task: TaskID | None = bar.add_task(title, total=total, note="") if bar else None

    @property
    def rate(self) -> float:
        """Units per second since the start."""
        return self.done / max(time.monotonic() - self._started, 1e-9)

    def advance(self, units: int, note: str = "") -> None:
        """Add `units` of finished work; `note` is shown beside the bar and in the log."""
        self.done += units
        self.note = note
        if self.bar and self._task is not None:
            self.bar.update(self._task, completed=self.done, note=f"{self.rate:.0f} {self.unit}/s {note}")
        if time.monotonic() - self._logged >= LOG_EVERY_S or self.done >= self.total:
            self._logged = time.monotonic()
            left_s = (self.total - self.done) / self.rate if self.rate else 0.0
            speed = f"{self.rate:.0f} {self.unit}/s, {left_s:.0f} s left {note}".rstrip()
            log(f"{self.title}: {self.done}/{self.total} {self.unit}, {speed}")


@contextmanager
def meter(title: str, total: int, unit: str) -> Iterator[Meter]:
    """Show the progress of `total` units while the block runs."""
    console = _terminal()
    if console is None:
        yield Meter(title, total, unit, None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield Meter(title, total, unit, bar)
