"""The two kinds of engine behind one interface: vLLM in this process with our tap, or vLLM's own server.

Called by `run` and `producer`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from harness.capture.engine import AnyEngine, Engine, EngineSize, cache_bytes
from harness.capture.served import ServedEngine
from harness.capture.settings import CaptureSettings
from harness.verifiers.weights import verifier_config


@contextmanager
def running_engine(
    settings: CaptureSettings, verifier: Path, size: EngineSize, layer_ids: list[int], folder: Path
) -> Iterator[AnyEngine]:
    """The engine that `capture.engine` asks for, until the block ends.

    Args:
        verifier: its folder.
        size: what it must hold.
        layer_ids: ascending ids of the states to give.
        folder: where a server may keep its log and, for a moment, its files.
    """
    cache = cache_bytes(verifier_config(verifier), size, getattr(torch, settings.dtype).itemsize)
    if settings.capture.engine == "in_process":
        yield Engine(verifier, settings.dtype, size, settings.max_model_len, cache, layer_ids)
        return
    with ServedEngine(verifier, settings, size, cache, layer_ids, folder) as engine:
        yield engine
