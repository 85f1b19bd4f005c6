"""The comparison of the losses with eager ones, at toy size."""

import os
import re
import subprocess
import sys

import pytest

from benchmarks.loss_kernels import EAGER, Case, cases, compare

TOY = Case(blocks=20, block=3, vocabulary=300, width=16)


@pytest.mark.parametrize("loss", EAGER)
def test_both_sides_give_the_same_loss_and_gradient(loss: str):
    found = compare(TOY, loss, repeats=1)
    assert found["disagreement"] < 0.02
    assert found["eager_seconds_per_chunked"] == found["eager"]["seconds"] / found["chunked"]["seconds"]


def test_each_size_grows_alone():
    grown = cases(TOY)
    assert grown["base"] == TOY
    changed = [
        {key for key in vars(TOY) if getattr(case, key) != getattr(TOY, key)}
        for name, case in grown.items()
        if name != "base"
    ]
    assert changed == [{"blocks"}, {"vocabulary"}, {"block"}]


def test_our_memory_stays_flat_as_the_vocabulary_grows_and_eager_memory_does_not():
    """In a program of its own: elsewhere memory that others gave back hides what a pass takes."""
    sizes = ["--vocabulary", "4096", "--width", "32", "--repeats", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.loss_kernels", *sizes], capture_output=True, text=True, timeout=60,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    # At this size pages of 2 MiB weigh as much as tensors: the verdict of the exit code is left to full size.
    assert done.returncode in (0, 1) and not done.stderr, done.stdout + done.stderr
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith("vocabulary x4"))
    chunked, eager = (float(cell) for cell in row[-2:])
    assert chunked < 2 and eager > 3
    assert re.search(r"vocabulary x4: our memory x\d\.\d\d", done.stdout)
