"""The state of a running training on disk: weights, optimiser moments, the best epoch and the step, in one file.

Called by `loop`. Safetensors only, whole or absent; the header says what the training was made from.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from harness.errors import UserError
from harness.files import replacing
from harness.progress import log
from harness.training.distributed import like, whole
from harness.training.fingerprint import ROUNDING, differences
from harness.training.validation import Walk

STATE_FILE = "state.safetensors"
HEADER_KEY = "specproof"
STARTS_OVER = "training starts from the beginning"


@dataclass
class Best:
    """The epoch that validated best: after which step, how, and its trained weights where the draft has moved on."""

    step: int
    walk: Walk
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Position:
    """How far a training is.

    Attributes:
        step: number of finished steps. seconds: that they took.
        other_machines: where it went on with another rounding, one line for each change.
    """

    step: int
    seconds: float
    other_machines: list[str]
    best: Best | None


@dataclass(frozen=True)
class Saved:
    """A state read back."""

    at: Position
    tensors: dict[str, Tensor]


def trained_weights(draft: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter that is trained, spread as the draft is."""
    return {n: p.detach().clone() for n, p in draft.named_parameters() if p.requires_grad}


def _flatten(draft: nn.Module, optimizers: list[torch.optim.Optimizer], best: Best | None) -> dict[str, Tensor]:
    tensors = {f"draft.{name}": tensor for name, tensor in draft.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in (best.weights if best else {}).items()}
    for number, optimizer in enumerate(optimizers):
        for index, moments in optimizer.state_dict()["state"].items():
            for name, value in moments.items():
                tensors[f"optimizer.{number}.{index}.{name}"] = torch.as_tensor(value)
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _whole(tensors: dict[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """In main memory and whole; empty without `keep`, for a process that only gives its share of them."""
    kept = {}
    for name, tensor in tensors.items():
        one = whole(tensor)
        if keep:
            kept[name] = one.cpu().contiguous()
    return kept


def save(
    folder: Path,
    made_from: dict[str, Any],
    at: Position,
    draft: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    leads: bool = True,
) -> None:
    """Write the state of `draft` and `optimizers` at this position; every process calls it, the leading one writes.

    The state is whole, so that another number of processes can take it up. It passes through the leader's memory.
    """
    tensors = _whole(_flatten(draft, optimizers, at.best), leads)
    if not leads:
        return
    best = at.best and {"step": at.best.step, "walk": asdict(at.best.walk)}
    position = {"step": at.step, "seconds": at.seconds, "other_machines": at.other_machines, "best": best}
    header = {HEADER_KEY: json.dumps({"made_from": made_from} | position)}
    with replacing(folder / STATE_FILE) as partial:
        save_file(tensors, partial, metadata=header)


def load(folder: Path, made_from: dict[str, Any], restart_if_changed: bool) -> Saved | None:
    """The state in `folder`, or None with a line in the log that says why training starts from the beginning.

    Raises:
        UserError: it is of another recipe, other data, another verifier or other code, and `restart_if_changed` is not
            set.
    """
    path = folder / STATE_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[HEADER_KEY])
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
        theirs = header["made_from"]
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        log(f"{path}: not a whole training state of this version ({error}); {STARTS_OVER}")
        return None
    changed = list(differences(theirs | {ROUNDING: None}, made_from | {ROUNDING: None}))
    if changed and not restart_if_changed:
        raise UserError(
            f"{path}: is of another training: {'; '.join(changed)}. "
            "Fix: undo the change, give another --state, or start over with --restart-if-changed"
        )
    if changed:
        log(f"{path}: is of another training: {'; '.join(changed)}; {STARTS_OVER}")
        return None
    return _saved(header, tensors, list(differences(theirs[ROUNDING], made_from[ROUNDING], ROUNDING)))


def _saved(header: dict[str, Any], tensors: dict[str, Tensor], other_machine: list[str]) -> Saved:
    if other_machine:
        log(f"goes on after step {header['step']} on another machine, not bit for bit: {'; '.join(other_machine)}")
    moved = [f"after step {header['step']}: {change}" for change in other_machine]
    best = header["best"] and Best(header["best"]["step"], Walk(**header["best"]["walk"]), _part(tensors, "best."))
    return Saved(Position(header["step"], header["seconds"], header["other_machines"] + moved, best), tensors)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def restore(saved: Saved, draft: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """Put weights and moments back, bit for bit, spread as the draft is."""
    weights = _part(saved.tensors, "draft.")
    draft.load_state_dict({name: like(weights[name], tensor) for name, tensor in draft.state_dict().items()})
    for number, optimizer in enumerate(optimizers):
        content = optimizer.state_dict()
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _part(saved.tensors, f"optimizer.{number}.").items():
            index, moment = name.split(".", 1)
            parameter = parameters[int(index)]
            spread = like(tensor, parameter) if tensor.shape == parameter.shape else tensor
            moments.setdefault(int(index), {})[moment] = spread
        optimizer.load_state_dict({"state": moments, "param_groups": content["param_groups"]})
