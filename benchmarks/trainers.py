"""Our trainer and upstream's as commands that are told the same rows, sizes and steps.

Called by `acceptance_against_upstream` and `training_speed`.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.upstream_options import as_arguments, upstream_options
from harness.sections.training import Training

PACK_TOKENS = 1024


def environment(cores: int) -> dict[str, str]:
    """The environment that both trainers run in."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TQDM_DISABLE": "1"}
    return os.environ | offline | {"OMP_NUM_THREADS": str(cores)}


@dataclass(frozen=True)
class Trainers:
    """What both sides are told.

    Attributes:
        verifier: its folder, relative. capture: a finished capture of it.
        rows: folder of the rows in both layouts, which `write_rows` makes.
        training: our settings; upstream takes `epochs` from them.
        steps: optimiser steps of both.
    """

    verifier: Path
    capture: Path
    aux_layers: list[int]
    rows: Path
    training: Training
    steps: int
    cores: int

    def write_rows(self, vocabularies: list[int]) -> dict[str, Any]:
        """The rows in both layouts; returns the facts about them (see `upstream_data`)."""
        command = [
            sys.executable, "-m", "benchmarks.upstream_data", "--capture", str(self.capture),
            "--verifier", str(self.verifier), "--training", self.training.model_dump_json(),
            "--steps", str(self.steps), "--out", str(self.rows), "--vocabularies", *map(str, vocabularies),
        ]  # fmt: skip
        subprocess.run(command, check=True, env=environment(self.cores))
        return self.facts()

    def facts(self) -> dict[str, Any]:
        """What is known of the rows."""
        return json.loads((self.rows / "data.json").read_text())

    def ours(self, name: str, knobs: Any, folder: Path) -> list[str]:
        """Options of `python -m harness.training`, with packs so large that there are as many as upstream makes."""
        tokens_per_step = round(self.facts()["tokens"] * self.training.epochs / self.steps)
        settings = {
            "training": self.training.model_dump() | {"tokens_per_step": tokens_per_step},
            "algorithm": knobs.model_dump(),
            "scale": "full",
        }
        return [
            "--settings", json.dumps(settings), "--algorithm", name, "--verifier", str(self.verifier),
            "--capture", str(self.rows / "ours"), "--out", str(folder / "draft"), "--state", str(folder / "state"),
            "--restart-if-changed",
        ]  # fmt: skip

    def upstream(self, name: str, knobs: Any, folder: Path) -> list[str]:
        """Options of upstream's trainer."""
        options = upstream_options(name, knobs) | {
            "--verifier-name-or-path": self.verifier, "--data-path": self.rows / "upstream",
            "--train-data-ratio": self.facts()["training_share"], "--save-path": folder / "checkpoints",
            "--log-dir": folder / "logs", "--target-layer-ids": self.aux_layers,
            "--total-seq-len": PACK_TOKENS, "--epochs": self.training.epochs, "--max-steps": self.steps,
            # A whole number saves the first epoch and every so many: so the last one too.
            "--checkpoint-freq": self.training.epochs,
        }  # fmt: skip
        return as_arguments(options)
