"""A toy verifier with its reference states, and one thread for all tests of capture."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from harness.capture import run
from tests.harness.capture.reference import Reference
from tests.toy import write_verifier


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """A toy's operations are far shorter than waking other threads takes, the more so on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_verifier(tmp_path_factory.mktemp("verifier"))


@pytest.fixture(scope="module")
def reference(verifier: Path) -> Reference:
    return Reference(verifier)


@pytest.fixture
def engine(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> Reference:
    """The reference in the engine's place; `answered` lists who was asked in the full run, not in the preflight."""
    monkeypatch.setattr(run, "running_engine", lambda *_: nullcontext(reference))
    monkeypatch.setattr(run, "_prove", lambda *_: None)
    monkeypatch.setattr(reference, "layer_ids", reference.layer_ids)  # put back where a capture stopped the recording
    reference.answered.clear()
    return reference
