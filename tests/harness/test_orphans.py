"""A step ends with the run that started it, whatever ends the run; a command by hand has none."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.orphans import RUN_PID

STEP = """
import time
from harness.errors import run_command
run_command(lambda: print("begun", flush=True) or time.sleep(60))
"""
# As Snakemake does it: the run, a shell, the step.
RUN = f"""
import os, subprocess
os.environ[{RUN_PID!r}] = str(os.getpid())
subprocess.run(["bash", "-c", 'set -e; "$0" -c "$1"; true', {sys.executable!r}, {STEP!r}])
"""


def _begun(words, **options):
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path.cwd(), **options)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    return process


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_step_ends_with_its_run(how):
    run = _begun([sys.executable, "-c", RUN])
    (shell,) = psutil.Process(run.pid).children()
    (step,) = shell.children()
    os.kill(run.pid, how)
    run.wait(10)
    step.wait(10)
    assert not step.is_running()


def test_a_step_whose_run_is_gone_before_it_begins_ends_at_once():
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = subprocess.run(
        [sys.executable, "-c", STEP], env=os.environ | {RUN_PID: str(gone.pid)}, timeout=30, check=False
    )
    assert done.returncode == -signal.SIGKILL


def test_a_command_by_hand_goes_on_without_a_run():
    environment = {name: value for name, value in os.environ.items() if name != RUN_PID}
    process = _begun([sys.executable, "-c", STEP], env=environment)
    time.sleep(0.5)
    assert process.poll() is None
    process.kill()
    process.wait(10)
