"""What the tests of the checkpoint commands share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.checkpoint.__main__ import main
from harness.errors import run_command


@pytest.fixture
def checkpoint(monkeypatch) -> Callable[..., int]:
    """Runs `python -m harness.checkpoint ...` in this process and gives its exit code."""

    def run(*arguments: str | Path) -> int:
        monkeypatch.setattr("sys.argv", ["harness.checkpoint", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run_command(main)
        return int(ended.value.code or 0)

    return run
