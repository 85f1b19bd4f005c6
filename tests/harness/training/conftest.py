"""A place to train in, and trainings in forked processes that may be killed at a moment of choice."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import toy
from tests.harness.training import forked
from tests.harness.training.toy_training import ENVIRONMENT, command, make_store


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with verifier/ and capture/; commands run in it, so that their paths are relative."""
    folder = tmp_path_factory.mktemp("training")
    toy.write_verifier(folder / "verifier")
    make_store(folder / "capture", folder / "verifier")
    return folder


@pytest.fixture(scope="module")
def train(place: Path) -> Iterator[Callable[..., dict]]:
    """`train(name, settings, **how)`: one training as `forked` runs it; what it said is in `said`."""
    server = subprocess.Popen(
        [sys.executable, forked.__file__], cwd=place, env=ENVIRONMENT, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip

    def one(
        name: str, settings: dict | None = None, more: tuple[str, ...] = (), algorithm: str = "eagle3", **how
    ) -> dict:
        words = [*command(name, settings, algorithm)[3:], *more]
        print(json.dumps({"argv": words, "folder": name, **how}), file=server.stdin, flush=True)
        done = json.loads(server.stdout.readline())
        return done | {"said": (place / f"{name}.log").read_text()}

    yield one
    server.stdin.close()
    server.wait(timeout=30)
