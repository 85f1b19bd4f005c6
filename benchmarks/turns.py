"""Programs that work by turns: a step of one, a step of the other. The machine's moods then meet both alike.

A benchmark starts each program as a `Worker`. The program asks `Turns.given()` and calls `next` before every step; a
step lasts until the call before the following one, so that whatever the program does in between counts.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.memory import peak_memory_bytes

VARIABLE = "SPECPROOF_TURNS"


class Turns:
    """The program's side: waits until it may go on, and tells what its last turn took."""

    def __init__(self, permits: int, reports: int) -> None:
        self.permits, self.reports = os.fdopen(permits, "rb", buffering=0), os.fdopen(reports, "w")
        self.figures: dict[str, Any] = {}
        self.started: tuple[float, float] | None = None

    @classmethod
    def given(cls) -> "Turns | None":
        """Where a `Worker` started this program; None elsewhere."""
        ends = os.environ.get(VARIABLE)
        return cls(*map(int, ends.split(","))) if ends else None

    def tell(self, **figures: Any) -> None:
        """Add figures to the report of the present turn."""
        self.figures |= figures

    def next(self) -> None:
        """End the present turn, if there is one, and wait for the next.

        Raises:
            SystemExit: whoever gives the turns is gone.
        """
        if self.started is not None:
            wall, processor = self.started
            took = {"seconds": time.perf_counter() - wall, "processor_seconds": time.process_time() - processor}
            self._report(**took, **self.figures)
            self.figures = {}
        if not self.permits.read(1):
            raise SystemExit("nobody waits for another turn")
        self.started = time.perf_counter(), time.process_time()

    def end(self) -> None:
        """Tell the memory of the whole program; its last turn, which what follows the steps belongs to, is left out."""
        self._report()

    def _report(self, **figures: Any) -> None:
        self.reports.write(json.dumps(figures | {"peak_memory_bytes": peak_memory_bytes()}) + "\n")
        self.reports.flush()


class Worker:
    """A program that is given turns.

    Args:
        command: a program that uses `Turns`.
        environment: its environment variables.
        log: receives what it prints.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        permits, self.permits = os.pipe()
        reports, report_end = os.pipe()
        self.reports, self.log = os.fdopen(reports), log
        passed = {VARIABLE: f"{permits},{report_end}"}
        with log.open("w") as text:
            self.process = subprocess.Popen(
                command, env={**environment, **passed}, pass_fds=(permits, report_end), stdout=text,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        os.close(permits)
        os.close(report_end)

    def go(self) -> None:
        """Permit the next turn."""
        os.write(self.permits, b"\n")

    def report(self) -> dict[str, Any]:
        """What the program told at the end of its turn.

        Raises:
            RuntimeError: it ended without a word; the message holds the end of its log.
        """
        line = self.reports.readline()
        if not line:
            code = self.process.wait()
            raise RuntimeError(f"{' '.join(self.process.args[:4])} ended with {code}:\n{self.log.read_text()[-2000:]}")
        return json.loads(line)

    def turn(self) -> dict[str, Any]:
        """Permit a turn and wait for its end."""
        self.go()
        return self.report()

    def close(self) -> None:
        """End the program, whatever it does."""
        self.process.kill()
        self.process.wait()
        os.close(self.permits)
        self.reports.close()


def by_turns(workers: Mapping[str, Worker], turns: int) -> Iterator[dict[str, dict[str, Any]]]:
    """Let the workers make steps by turns; yields the figures of each turn by worker, and last those of the programs.

    The first step, which both make while they start, and the last one are not measured: a program makes `turns` + 2.
    """
    for worker in workers.values():
        worker.go()
    for worker in workers.values():
        worker.report()
    for _ in range(turns):
        yield {name: worker.turn() for name, worker in workers.items()}
    yield {name: worker.turn() for name, worker in workers.items()}
