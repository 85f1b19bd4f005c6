"""Batches of the steps in order, on the device that trains. Called by `loop`."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from algorithms.contract import Batch


def _mapped(content: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same dataclass with every tensor changed, those of inner dataclasses too."""
    changed: dict[str, Any] = {}
    for each in fields(content):
        value = getattr(content, each.name)
        if isinstance(value, torch.Tensor):
            changed[each.name] = change(value)
        elif is_dataclass(value):
            changed[each.name] = _mapped(value, change)
    return replace(content, **changed)


class Batches:
    """Reads a step's batch when it is asked for; for a GPU the next one of the epoch is read and pinned meanwhile.

    Not the first one of the next epoch: the validation reads in between, and a live engine gives states in order.

    Args:
        read: step -> batch in main memory.
        epochs: of each step.
        device: where they are wanted.
    """

    def __init__(self, read: Callable[[int], Batch], epochs: Sequence[int], device: torch.device) -> None:
        self._read, self._epochs, self._device = read, epochs, device
        self._reader = ThreadPoolExecutor(1) if device.type == "cuda" else None
        self._ahead: dict[int, Future[Batch]] = {}

    def __getitem__(self, step: int) -> Batch:
        """The batch of `step`, from 0."""
        if self._reader is None:
            return self._read(step)
        ready = self._ahead.pop(step, None) or self._reader.submit(self._pinned, step)
        if self._epochs[step : step + 2] == [self._epochs[step]] * 2:
            self._ahead[step + 1] = self._reader.submit(self._pinned, step + 1)
        return _mapped(ready.result(), lambda tensor: tensor.to(self._device, non_blocking=True))

    def _pinned(self, step: int) -> Batch:
        return _mapped(self._read(step), torch.Tensor.pin_memory)
