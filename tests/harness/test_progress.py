"""Progress: lines in the log that say how far, how fast, how long."""

import pytest

from harness import progress


def test_without_a_terminal_the_end_is_logged_as_a_plain_line(capsys: pytest.CaptureFixture):
    with progress.meter("capture", 10, "replies") as meter:
        meter.advance(4)
        meter.advance(6, "2 cut")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and meter.done == 10
    assert "capture: 10/10 replies, " in lines[0] and lines[0].endswith("replies/s, 0 s left 2 cut")


def test_a_long_run_is_logged_every_few_seconds(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.meter("train", 100, "steps") as meter:
        for _ in range(4):
            now[0] += progress.LOG_EVERY_S / 2
            meter.advance(10)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    # 20 steps in 10 s, 80 to go; then 40 in 20 s, 60 to go.
    assert "20/100 steps, 2 steps/s, 40 s left" in lines[0] and "40/100 steps, 2 steps/s, 30 s left" in lines[1]


def test_no_work_at_all_is_no_division_by_zero(capsys: pytest.CaptureFixture):
    with progress.meter("lint", 0, "files") as meter:
        meter.advance(0)
    assert "0/0 files" in capsys.readouterr().err


def test_a_log_line_bears_the_time_of_day(capsys: pytest.CaptureFixture):
    progress.log("hello")
    said = capsys.readouterr().err
    assert said[0] == "[" and said[3] == said[6] == ":" and said.endswith("] hello\n")
