"""What the tests of the checkpoint commands share."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def checkpoint(monkeypatch) -> Callable[..., int]:
    """Runs `python -m harness.checkpoint ...` in this process and gives its exit code."""

    def run(*arguments: str | Path) -> int:
        monkeypatch.setattr("sys.argv", ["harness.checkpoint", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("harness.checkpoint", run_name="__main__")
        return int(ended.value.code or 0)

    return run
