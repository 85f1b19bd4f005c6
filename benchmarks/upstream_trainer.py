"""Upstream speculators' own trainer in this process, on a machine without an accelerator.

    python -m benchmarks.upstream_trainer FILE OPTIONS-OF-`speculators train`

Called by `acceptance_against_upstream`, and by `training_speed`, which gives it turns. Upstream's code is used as
installed; where it asks for an accelerator, it is given the CPU: the model's device, the autocast device and the
synchronisation around its step timer.
FILE receives one JSON line a step with upstream's own metrics, and at the end one line with this process's peak memory.
"""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import torch

from benchmarks.turns import Turns
from harness.memory import peak_memory_bytes


class Figures(logging.Handler):
    """Writes what upstream logs about each step as JSON lines."""

    def __init__(self, file: TextIO) -> None:
        super().__init__(logging.INFO)
        self.file = file

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, dict):
            self.add(record.msg)

    def add(self, figures: dict[str, Any]) -> None:
        """Write one line, flushed, so that whoever waits can count the steps."""
        self.file.write(json.dumps(figures, default=str) + "\n")
        self.file.flush()


def _give_it_the_cpu() -> None:
    from speculators.train import trainer

    set_up = trainer.Trainer.setup_trainer

    def on_cpu(self: Any) -> None:
        self.device_type = "cpu"
        set_up(self)

    replaced: list[tuple[Any, str, Any]] = [
        (trainer.Trainer, "setup_trainer", on_cpu),
        (trainer, "get_local_rank", lambda: "cpu"),
        (torch.accelerator, "synchronize", lambda *_, **__: None),
    ]
    for place, name, stand_in in replaced:
        setattr(place, name, stand_in)


class _ByTurns:
    """A loader of training batches that waits for a turn before each; what the trainer asks of it goes through."""

    def __init__(self, loader: Any, turns: Turns) -> None:
        self.loader, self.turns = loader, turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        while True:
            self.turns.next()
            batch = next(batches, None)
            if batch is None:
                return
            self.turns.tell(tokens=int((batch["document_ids"] >= 0).sum()))
            yield batch


def _wait_before_each_step(turns: Turns) -> None:
    from speculators.train import trainer

    train_epoch = trainer.Trainer.train_epoch

    def by_turns(self: Any, epoch: int) -> None:
        self.train_loader = _ByTurns(self.train_loader, turns)
        train_epoch(self, epoch)

    trainer.Trainer.train_epoch = by_turns


def main() -> None:
    """Train as `speculators train` does."""
    from speculators.train import cli
    from speculators.train.config import TrainConfig

    if not torch.accelerator.is_available():
        _give_it_the_cpu()
    turns = Turns.given()
    if turns:
        _wait_before_each_step(turns)
    with Path(sys.argv[1]).open("w") as file:
        figures, logger = Figures(file), logging.getLogger("speculators.metrics")
        set_up = cli.setup_metric_logger

        def with_figures(*arguments: Any, **options: Any) -> None:
            # Upstream's own set-up replaces the handlers of this logger.
            set_up(*arguments, **options)
            logger.addHandler(figures)
            logger.setLevel(logging.INFO)

        cli.setup_metric_logger = with_figures
        cli.main(TrainConfig.resolve(sys.argv[2:]))
        figures.add({"peak_memory_bytes": peak_memory_bytes()})
    if turns:
        turns.end()


if __name__ == "__main__":
    main()
