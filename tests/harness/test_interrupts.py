"""Ctrl-C in the first moments of a command."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import interrupts

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "harness.checkpoint", "harness.plan", "harness.evaluation", "harness.capture", "harness.training", "reports",
    "reports.gate",
)  # fmt: skip
# Python imports this before anything of ours: Ctrl-C as soon as the command imports something large or `run_command`.
AT_ONCE = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "pydantic", "harness.errors"):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_during_the_imports_is_one_line_and_130(tmp_path: Path, command: str):
    (tmp_path / "sitecustomize.py").write_text(AT_ONCE)
    done = subprocess.run(
        [sys.executable, "-m", command, "--help"], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{interrupts.SAID}\n")


def test_other_programs_keep_their_handler_and_a_command_gives_it_back(monkeypatch: pytest.MonkeyPatch):
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for words in (["python", "-m", "pytest"], ["python", "x.py"], ["python", "-m", interrupts.SERVER, "serve"]):
            monkeypatch.setattr(sys, "orig_argv", words)
            interrupts.watch()
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "harness.plan", "x"])
        interrupts.watch()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        interrupts.hand_over()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
