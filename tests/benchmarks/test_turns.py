"""Two programs that work by turns never work at once, and a turn holds all that its program does."""

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.turns import Worker, by_turns

PROGRAM = """
import sys, time
from benchmarks.turns import Turns
name, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
turns = Turns.given()
for step in range(steps):
    turns.next()
    with open("said.txt", "a") as file:
        file.write(f"{name}{step} ")
    time.sleep(pause)
    turns.tell(tokens=step)
    if name == "bad":
        raise ValueError("out of luck")
with open("said.txt", "a") as file:
    file.write(f"{name}-end ")
turns.end()
"""


def worker(folder: Path, name: str, steps: int, pause: float = 0.0) -> Worker:
    command = ["/usr/bin/env", "-C", str(folder), sys.executable, "-c", PROGRAM, name, str(steps), str(pause)]
    return Worker(command, os.environ | {"PYTHONPATH": str(Path.cwd())}, folder / f"{name}.log")


def test_steps_alternate_and_each_is_timed_with_what_follows_it(tmp_path):
    with closing(worker(tmp_path, "a", 4, 0.05)) as a, closing(worker(tmp_path, "b", 4)) as b:
        *turns, programs = by_turns({"a": a, "b": b}, 2)
    said = (tmp_path / "said.txt").read_text().split()
    assert sorted(said[:2]) == ["a0", "b0"], "both start at once"
    assert said[2:6] == ["a1", "b1", "a2", "b2"] and sorted(said[6:]) == ["a-end", "a3", "b-end", "b3"]
    assert [turn["a"]["tokens"] for turn in turns] == [1, 2]
    assert all(turn["a"]["seconds"] >= 0.05 > turn["a"]["processor_seconds"] for turn in turns)
    assert all(program["peak_memory_bytes"] > 1_000_000 and "seconds" not in program for program in programs.values())


def test_a_program_that_fails_is_an_error_with_what_it_said(tmp_path):
    with (
        closing(worker(tmp_path, "bad", 3)) as bad,
        pytest.raises(RuntimeError, match=r"(?s)ended with 1:.*out of luck"),
    ):
        list(by_turns({"bad": bad}, 1))


def test_a_program_whose_reader_is_gone_ends(tmp_path):
    waiting = worker(tmp_path, "a", 5)
    waiting.turn()
    os.close(waiting.permits)
    assert waiting.process.wait(timeout=20) == 1
    waiting.reports.close()
    assert "nobody waits" in (tmp_path / "a.log").read_text()
