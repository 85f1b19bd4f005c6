"""The training of a miniature by two processes: how evenly experts are used, and what is said when one of them dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UserError
from harness.sections.verifier import MiniatureVerifier
from harness.verifiers.miniature import training
from harness.verifiers.miniature.build import build


@given(st.integers(2, 6), st.integers(1, 2))
def test_experts_that_all_get_the_same_share_are_even_and_the_same_few_are_not(experts, chosen):
    tokens = 4 * experts
    first = torch.arange(tokens)[:, None] + torch.arange(chosen)
    taking_turns = torch.zeros(tokens, experts).scatter_(1, first % experts, 20.0)
    assert training._unevenness(taking_turns, chosen) == pytest.approx(1.0, rel=1e-4)
    always_the_same = torch.zeros(tokens, experts)
    always_the_same[:, :chosen] = 20.0
    assert training._unevenness(always_the_same, chosen) == pytest.approx(experts / chosen, rel=1e-4)


def _runs_out_of_memory(*_) -> float:
    if torch.multiprocessing.parent_process():
        raise MemoryError
    return 1.0


def _is_killed_at_work(*_) -> float:
    if torch.multiprocessing.parent_process():
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def _is_killed_while_it_waits(*_) -> float:
    for other in torch.multiprocessing.active_children():
        time.sleep(0.5)
        other.kill()
    return 1.0


@pytest.mark.parametrize("how", [_runs_out_of_memory, _is_killed_at_work, _is_killed_while_it_waits])
def test_a_second_process_that_dies_ends_the_training_at_once_with_one_line(tmp_path: Path, monkeypatch, how):
    monkeypatch.setattr(training, "_learn", how)
    verifier = MiniatureVerifier(source="miniature", id="specproof/llama", family="llama", training_tokens=10_000)
    started = time.monotonic()
    with pytest.raises(UserError, match=r"the second process of its training died. Fix: free memory"):
        build(verifier, tmp_path)
    assert time.monotonic() - started < 30
    assert not list(tmp_path.iterdir()) and not torch.multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_the_second_process_ends_with_the_first_and_leaves_nothing_whole(tmp_path: Path, number: int, code: int):
    source = {"source": "miniature", "id": "specproof/llama", "family": "llama", "training_tokens": 200_000}
    settings = json.dumps({"verifier": source, "checks": [], "scale": "mini"})
    command = [sys.executable, "-m", "harness.verifiers", "--settings", settings, "--out", f"{tmp_path}/models/mini"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as first:
        while not (others := psutil.Process(first.pid).children()) and first.poll() is None:
            time.sleep(0.1)
        time.sleep(1)  # well into the steps
        # A terminal sends Ctrl-C to both; a kill meets one.
        os.killpg(first.pid, number) if number == signal.SIGINT else first.kill()
        said = first.communicate(timeout=60)[1]
    assert (len(others), first.returncode) == (1, code)
    left = psutil.wait_procs(others, timeout=5)[1]
    assert all(each.status() == psutil.STATUS_ZOMBIE for each in left), "nobody may be there to bury it"
    assert "Traceback" not in said and ("interrupted;" in said) == (number == signal.SIGINT)
    assert not (tmp_path / "models/mini").exists()
