"""A toy verifier with its reference states, and one thread for all tests of capture."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

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
