"""Seeds for every test, and a stated reason where a test is skipped. Used by pytest for all folders under tests/."""

import os
import random
import signal
import sys
from collections.abc import Iterator

# Before any import of a tool that phones home: tests use no network beyond loopback.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ["SPECPROOF_PROGRESS"] = "plain"

import numpy
import pytest

SEED = 20240101

# A job in the background is started with Ctrl-C ignored, and its children inherit that: tests of Ctrl-C need it back.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu` tests where there is no CUDA device. PyTorch is imported only when such a test was collected."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; there is none here"))


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    random.seed(SEED)
    numpy.random.seed(SEED)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(SEED)
    yield
