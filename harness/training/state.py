"""The state of a running training on disk: weights, optimiser moments and the step, in one file, whole or absent.

Called by `loop`. Safetensors only; the fingerprint in the header says which data, settings and verifier it belongs to.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from harness.files import replacing
from harness.progress import log

STATE_FILE = "state.safetensors"
HEADER_KEY = "specproof"


@dataclass(frozen=True)
class Saved:
    """A state read back: the number of finished steps, the seconds they took, and the tensors."""

    step: int
    seconds: float
    tensors: dict[str, Tensor]


def _flatten(draft: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    tensors = {f"draft.{name}": tensor for name, tensor in draft.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        for index, moments in optimizer.state_dict()["state"].items():
            for name, value in moments.items():
                tensors[f"optimizer.{number}.{index}.{name}"] = torch.as_tensor(value)
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def save(
    folder: Path,
    fingerprint: dict[str, Any],
    step: int,
    seconds: float,
    draft: nn.Module,
    optimizers: list[torch.optim.Optimizer],
) -> None:
    """Write the state after `step` finished steps that took `seconds`."""
    header = {HEADER_KEY: json.dumps({"fingerprint": fingerprint, "step": step, "seconds": seconds})}
    with replacing(folder / STATE_FILE) as partial:
        save_file(_flatten(draft, optimizers), partial, metadata=header)


def load(folder: Path, fingerprint: dict[str, Any]) -> Saved | None:
    """The state in `folder`, or None with a line in the log that says why training starts from the beginning."""
    path = folder / STATE_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as saved:
            header = json.loads((saved.metadata() or {})[HEADER_KEY])
            tensors = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        log(f"{path}: not a whole training state ({error}); training starts from the beginning")
        return None
    theirs = header["fingerprint"]
    changed = sorted(key for key in fingerprint.keys() | theirs.keys() if fingerprint.get(key) != theirs.get(key))
    if changed:
        log(f"{path}: belongs to another run ({', '.join(changed)} changed); training starts from the beginning")
        return None
    return Saved(header["step"], header["seconds"], tensors)


def restore(saved: Saved, draft: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """Put weights and moments back, bit for bit."""
    draft.load_state_dict({n.removeprefix("draft."): t for n, t in saved.tensors.items() if n.startswith("draft.")})
    for number, optimizer in enumerate(optimizers):
        content = optimizer.state_dict()
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in saved.tensors.items():
            if name.startswith(f"optimizer.{number}."):
                index, moment = name.split(".", 3)[2:]
                moments.setdefault(int(index), {})[moment] = tensor
        optimizer.load_state_dict({"state": moments, "param_groups": content["param_groups"]})
