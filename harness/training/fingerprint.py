"""What a trained draft follows from, field by field: a saved state is taken up only by a training of the same.

Made by `python -m harness.training`, kept in the state's header, compared by `state`.
"""

import json
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import torch

from harness.capture.store import Store
from harness.codeversion import versions
from harness.files import json_sha256
from harness.training.distributed import ALONE, World
from harness.training.settings import TrainSettings
from harness.verifiers.identity import verifier_identity

ROOT = Path(__file__).parents[2]
# When it is saved, what of it is kept, who watches it and how many compute it changes no step of a training.
OUTSIDE = {"checkpoint_minutes", "keep", "log_to", "processes"}
# These change the last bits of a sum and nothing else.
ROUNDING = "machine"
SHOWN_DIGITS = 12


def fingerprint(
    settings: TrainSettings,
    algorithm: str,
    knobs: dict[str, Any],
    store: Store,
    verifier: Path,
    start: str | None,
    world: World = ALONE,
) -> dict[str, Any]:
    """Recipe, data, verifier, code and machine of a training, as plain data.

    Args:
        knobs: settings of the algorithm with its defaults filled in.
        start: hash of the checkpoint that the training goes on from, if there is one.
    """
    with chdir(ROOT):  # names of code are relative to the checkout
        live = ["harness.capture.producer"] if settings.live else []
        code = versions("harness.training.__main__", f"algorithms.{algorithm}.algorithm", *live)
    shards = [shard["sha256"] for shard in store.manifest["shards"]]
    found = {
        "training": settings.training.model_dump(exclude=OUTSIDE),
        "algorithm": {"name": algorithm, **knobs, "start": start},
        "capture": {key: store.manifest[key] for key in ("rows", "tokens", "aux_layers", "dtype")}
        | {"content": json_sha256(shards), "live": settings.live and settings.live.model_dump()},
        "verifier": verifier_identity(verifier),
        "code": dict(part.split("@") for part in code),
        ROUNDING: {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "processes": world.size,
            "device": world.device_text,
            "cpu": torch.backends.cpu.get_cpu_capability(),
        },
    }
    return json.loads(json.dumps(found))  # as it comes back from a file


def differences(theirs: Any, ours: Any, name: str = "") -> Iterator[str]:
    """One text for each field that differs: its dotted name, and the value there and here."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            yield from differences(theirs.get(key), ours.get(key), f"{name}.{key}".lstrip("."))
    elif theirs != ours:
        yield f"{name}: {_short(theirs)} there, {_short(ours)} here"


def _short(value: Any) -> str:
    if isinstance(value, str) and len(value) == 64:  # a hash
        return value[:SHOWN_DIGITS]
    return "nothing" if value is None else str(value)
