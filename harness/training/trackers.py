"""Figures of a training to TensorBoard or trackio, where `training.log_to` asks for one. Called by `loop`.

Neither package is among the project's own: each is imported only where it is asked for. Both write beside the training
and send nothing anywhere. What the project itself reads is metrics.jsonl.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from harness.errors import UserError
from harness.sections.training import Tracker

PROJECT = "specproof"


class Sink(Protocol):
    """Where figures go."""

    def log(self, figures: dict[str, float], step: int) -> None:
        """Take the figures of one step."""

    def close(self) -> None:
        """Write what waits."""


class _TensorBoard:
    def __init__(self, folder: Path, first_step: int, settings: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Steps that a killed training logged after its last saved state come again: the viewer drops the earlier ones.
        self.writer = SummaryWriter(str(folder), purge_step=first_step)
        if first_step == 1:
            self.writer.add_text("settings", "\n".join(f"    {key}: {value}" for key, value in settings.items()))

    def log(self, figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class _Trackio:
    def __init__(self, folder: Path, first_step: int, settings: dict[str, Any]) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(folder))
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # it would ask the hub for the name of who is logged in
        import trackio

        name = "-".join(folder.parent.parts[-3:])
        self.run = trackio.init(PROJECT, name=name, config=settings, resume="never" if first_step == 1 else "allow")

    def log(self, figures: dict[str, float], step: int) -> None:
        self.run.log(figures, step=step)

    def close(self) -> None:
        self.run.finish()


SINKS: dict[Tracker, type[_TensorBoard | _Trackio]] = {"tensorboard": _TensorBoard, "trackio": _Trackio}


def require(names: Sequence[Tracker]) -> None:
    """Raises `UserError` with the first package that is asked for and not installed."""
    for name in names:
        if find_spec(name) is None:
            raise UserError(
                f"training.log_to = {list(names)}: the package {name} is not installed. "
                f"Fix: uv pip install {name}, or leave it out"
            )


@contextmanager
def opened(names: Sequence[Tracker], folder: Path, first_step: int, settings: dict[str, Any]) -> Iterator[list[Sink]]:
    """The sinks, each in a folder of its own under `folder`; a training that starts over empties it first."""
    with ExitStack() as stack:
        sinks: list[Sink] = []
        for name in names:
            if first_step == 1:
                shutil.rmtree(folder / name, ignore_errors=True)
            sink = SINKS[name](folder / name, first_step, settings)
            stack.callback(sink.close)
            sinks.append(sink)
        yield sinks


def figures_of(row: dict[str, Any]) -> dict[str, float]:
    """A row of metrics.jsonl as named numbers, `train/` or `validation/` before the name, list entries from 1."""
    split = row.get("split", "train")
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, list):
            found |= {f"{split}/{name}_{at}": each for at, each in enumerate(value, 1)}
        elif name not in ("split", "step"):
            found[f"{split}/{name}"] = value
    return found
