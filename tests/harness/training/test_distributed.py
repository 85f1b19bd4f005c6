"""Two processes train as one does: the same losses and weights up to float32 rounding, and each other's states.

Sums over rows are added in another order, which changed losses by 2 parts in 10 million here. AdamW divides a gradient
by its own size and Muon gives every direction of an update the same length, so that what is rounding alone moves, too:
weights are held against how far training moved them, as whole matrices; they differed by 9 parts in 100,000 at most.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from harness.errors import UserError
from harness.training.distributed import World
from harness.training.loop import resume
from harness.training.muon import _deal
from tests import toy
from tests.harness.training.together import KINDS, half_trained, name_of, prepared, trained
from tests.harness.training.toy_training import ENVIRONMENT, SETTINGS, TRAINING, command, make_store

LOSS_TOLERANCE, MOVE_TOLERANCE = 1e-5, 1e-3


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(2, 5))
def test_every_document_of_a_pack_is_computed_by_one_process_and_none_has_much_more_than_another(lengths, size):
    rows = list(range(len(lengths)))
    shares = [World(rank, size).share(rows, lengths) for rank in range(size)]
    assert sorted(row for share in shares for row in share) == rows
    assert all(share == sorted(share) for share in shares)
    loads = [sum(lengths[row] for row in share) for share in shares]
    assert max(loads) - min(loads) <= max(lengths)


def test_matrices_are_dealt_out_by_what_they_cost():
    assert _deal([(64, 64), (64, 256), (64, 64), (64, 64), (64, 64)], 2) == [1, 0, 1, 1, 1]


def test_one_process_alone_needs_no_partner():
    world = World()
    assert (world.sum([1.5, 2.0]), world.agree(True), world.share([3, 1], [1] * 4)) == ([1.5, 2.0], True, None)


def test_processes_that_find_different_states_do_not_start(place, tmp_path, monkeypatch):
    """Without it they would wait for each other for ever, or train on with different weights."""
    run = prepared(place, tmp_path, KINDS[0], World())
    run.world = World(0, 2)
    others_steps = torch.tensor([3.0, 0.0], dtype=torch.float64)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda sums: sums.mul_(2).add_(others_steps))
    with pytest.raises(UserError, match=r"not every process finds this state.* Fix: use a file system that all"):
        resume(run)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("together")
    toy.write_verifier(folder / "verifier")
    # One document is longer than a pack, so that one of two processes has nothing to count there.
    make_store(folder / "capture", folder / "verifier", (20, 31, 12, 25, 18, 40, 22, 9, 27, 16, 70, 14))
    return folder


@pytest.fixture(scope="module")
def both(place):
    """(folder of one process, folder of two), every kind of training in each; in `half` one begun by the other."""
    alone, together = place / "alone", place / "together"
    for folder in (alone, together):
        (folder / "half").mkdir(parents=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    half_trained(place, alone / "half", KINDS[0], World())
    program = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    worker = ["-m", "tests.harness.training.together", str(place), str(together), str(alone / "half")]
    environment = ENVIRONMENT | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(
        [sys.executable, *program, *worker], cwd=Path.cwd(), env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        for kind in KINDS:
            trained(place, alone, kind, World())
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0 and said.count("resumed after step 6 of 12") == 1, said
    trained(place, together / "half", KINDS[0], World())
    torch.set_num_threads(threads)
    return alone, together


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_two_processes_compute_the_losses_and_weights_of_one(both, kind):
    same_training(*both, name_of(kind))


@pytest.mark.slow
def test_two_processes_go_on_from_a_state_of_one_and_one_from_a_state_of_two(both):
    alone, together = both
    same_training(alone, alone / "half", name_of(KINDS[0]))
    same_training(alone, together / "half", name_of(KINDS[0]))


def same_training(first, second, kind):
    alone, together = (json.loads((folder / f"{kind}.json").read_text()) for folder in (first, second))
    assert len(alone) == len(together)
    for one, two in zip(alone, together, strict=True):
        assert one.keys() == two.keys()
        for name in one.keys() - {"tokens_per_s", "split"}:
            assert two[name] == pytest.approx(one[name], rel=LOSS_TOLERANCE, abs=1e-5), (one["step"], name)
    one, two = (load_file(folder / f"{kind}.safetensors") for folder in (first, second))
    for name in (name for name in one if not name.startswith("before.")):
        assert torch.equal(one[f"before.{name}"], two[f"before.{name}"])
        moved = (one[name] - one[f"before.{name}"]).norm()
        assert (two[name] - one[name]).norm() <= MOVE_TOLERANCE * moved, name


def launched(name, settings=None):
    words = command(name, settings)
    words[2:3] = ["harness.training.launch", "--processes", "2"]
    return words


def run(place, words):
    return subprocess.run(words, cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_the_launched_processes_leave_the_files_of_one(place):
    settings = SETTINGS | {"training": TRAINING | {"optimizer": "muon", "compute_dtype": "bfloat16"}}
    done = run(place, launched("launched", settings))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("written; acceptance length") == 1, "one of them speaks"
    summary = json.loads((place / "launched/state/summary.json").read_text())
    assert (summary["processes"], summary["device"], summary["steps"]) == (2, "CPU", 8)
    assert {path.name for path in (place / "launched/draft").iterdir()} >= {"config.json", "model.safetensors"}


@pytest.mark.slow
def test_a_mistake_is_said_once_by_two_processes(place):
    done = run(place, launched("bad", SETTINGS | {"training": TRAINING | {"epochs": "2"}}))
    assert (done.returncode, done.stderr.count("training.epochs = '2'")) == (2, 1) and "Traceback" not in done.stderr


def test_one_process_is_the_command_itself():
    words = [sys.executable, "-m", "harness.training.launch", "--processes", "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))
    assert done.returncode == 2 and "python -m harness.training: error: the following arguments are" in done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_all_processes_with_one_exit_code(place):
    settings = SETTINGS | {"training": TRAINING | {"epochs": 10_000}}
    with subprocess.Popen(
        launched("stopped", settings), cwd=place, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    ) as process:
        while "tokens cover" not in process.stderr.readline():
            assert process.poll() is None
        started = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "Traceback" not in said
    assert len(started) == 2 and not any(each.is_running() for each in started)


def test_a_number_of_processes_below_one_is_refused():
    words = [sys.executable, "-m", "harness.training.launch", "--processes", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "--processes = 0" in done.stderr
