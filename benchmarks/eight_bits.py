"""What states in 8 bits cost: disk, the error of states, and the acceptance of a draft that was trained on them.

    python -m benchmarks.eight_bits [--capture FOLDER] [--algorithm NAME] [--seeds 1] [--requests 40]

One capture, kept as it is and in 8 bits; the same draft trained on both with the same seeds, and so the same rows in
the same steps. Both then draft on rows that neither has seen, along the states as they were captured, and with
--requests above 0 the drafts of the first seed are served by the same server and asked the same held-out prompts.
Gaps are paired by reply. A training that is finished is not made again; delete --work to start anew.
Exit code 1 when the draft of 8 bits accepts less, beyond the 95% interval.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import algorithms
from benchmarks.acceptance_against_upstream import Comparison
from benchmarks.store_read import in_eight_bits
from harness.capture.store import MANIFEST, Store
from harness.checkpoint import read_checkpoint
from harness.config import load_reproduction
from harness.errors import run_command
from harness.evaluation.statistics import pooled_gap
from harness.evaluation.walk import walk
from harness.files import write_json
from harness.progress import meter
from harness.provenance import collect
from harness.training.packing import split_rows
from harness.verifiers.weights import load_weights

KINDS = ("as_captured", "int8")
VALIDATION_SHARE = 0.3
Steps = list[list[int]]


class Trial:
    """What is trained and where its parts lie."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.work = arguments, arguments.work
        self.reproduction = load_reproduction(arguments.reproduction)
        self.verifier = Path("models") / arguments.reproduction
        told = {"validation_share": VALIDATION_SHARE, "epochs": arguments.epochs}
        self.training = self.reproduction.training.model_copy(update=told)
        self.folders = {"as_captured": arguments.capture, "int8": self.work / "int8_capture"}
        if not (self.folders["int8"] / MANIFEST).exists():
            in_eight_bits(arguments.capture, self.folders["int8"])

    def draft(self, kind: str, seed: int) -> Path:
        """Folder of a trained draft, with `draft/` and `state/`."""
        return self.work / f"{kind}_{seed}"

    def train(self, kind: str, seed: int) -> None:
        """`python -m harness.training`, where that was not done yet."""
        folder = self.draft(kind, seed)
        if (folder / "state" / "summary.json").exists():
            return
        settings = {
            "training": self.training.model_dump() | {"seed": seed},
            "algorithm": self.reproduction.algorithms[self.arguments.algorithm],
            "scale": "full",
        }
        command = [
            sys.executable, "-m", "harness.training", "--settings", json.dumps(settings),
            "--algorithm", self.arguments.algorithm, "--verifier", str(self.verifier),
            "--capture", str(self.folders[kind]), "--out", str(folder / "draft"), "--state", str(folder / "state"),
            "--restart-if-changed",
        ]  # fmt: skip
        subprocess.run(command, check=True)

    def unseen(self, kind: str, seed: int) -> Steps:
        """Accepted drafts of each verify step of rows that the training left out, along the states as captured."""
        algorithm, store = algorithms.load(self.arguments.algorithm), Store(self.folders["as_captured"])
        content, tensors = read_checkpoint(self.draft(kind, seed) / "draft")
        draft = algorithm.restore(content, tensors, load_weights(self.verifier))
        knobs = algorithm.Config.model_validate(self.reproduction.algorithms[self.arguments.algorithm])
        _, rows = split_rows(len(store), VALIDATION_SHARE, seed)
        rows = rows[:: max(1, len(rows) // self.arguments.replies)][: self.arguments.replies]
        found = []
        with meter(f"{kind}, seed {seed}", len(rows), "replies") as bar:
            for row in rows:
                document, aux_SAH = store[row], store.split_states(store[row])[0]
                prompt = int(document.loss_mask.long().argmax())
                drafts_RK = algorithm.propose(
                    draft, document.token_ids, aux_SAH, knobs.speculative_tokens, first=prompt - 1
                )
                found.append(walk(drafts_RK, [*document.token_ids.tolist(), document.last_token], prompt))
                bar.advance(1)
        return found

    def served(self, kind: str) -> Steps:
        """The same of replies that a server gave to held-out prompts, drafting with the draft of the first seed."""
        name, seed = self.arguments.algorithm, self.arguments.seeds[0]
        asked = {"reproduction": self.arguments.reproduction, "work": self.work, "requests": self.arguments.requests}
        comparison = Comparison(argparse.Namespace(**asked, steps=1, epochs=1, algorithms=[name]))
        rows = comparison.measure(name, self.draft(kind, seed))["replies"]
        return [[row["accepted"], row["drafts"]] for row in sorted(rows, key=lambda row: row["id"])]


def _gap(counts: dict[str, list[tuple[int, int]]], evaluate: Any) -> dict[str, Any]:
    """Lengths of both kinds and the gap of 8 bits less the other; counts are (accepted, steps) of each reply."""
    sides = {kind: tuple(map(list, zip(*each, strict=True))) for kind, each in counts.items()}
    gap = pooled_gap(sides["int8"], sides["as_captured"], evaluate.bootstrap_resamples, evaluate.seed)
    lengths = {kind: 1 + sum(accepted) / sum(steps) for kind, (accepted, steps) in sides.items()}
    return {"acceptance_length_pooled": lengths, "gap": gap.as_dict()}


def _counts(replies: Iterable[list[int]]) -> list[tuple[int, int]]:
    return [(sum(steps), len(steps)) for steps in replies if steps]


def _stored(folder: Path) -> dict[str, Any]:
    manifest = json.loads((folder / MANIFEST).read_text())
    size = sum(record["bytes"] for record in manifest["shards"])
    return {"bytes": size, "relative_error_mean_by_layer": manifest.get("store_error")}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.eight_bits", description=__doc__.split("\n")[0])
    parser.add_argument("--capture", type=Path, default=Path("results/smollm2_135m/capture"))
    parser.add_argument("--reproduction", default="smollm2_135m", help="its settings, verifier and prompts are used")
    parser.add_argument("--algorithm", choices=algorithms.NAMES, default=algorithms.NAMES[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--replies", type=int, default=100, help="unseen rows to draft on")
    parser.add_argument("--requests", type=int, default=40, help="held-out prompts of each benchmark; 0 serves nothing")
    parser.add_argument("--work", type=Path, default=Path("results/benchmarks/eight_bits"))
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    trial = Trial(arguments)
    for seed in arguments.seeds:
        for kind in KINDS:
            trial.train(kind, seed)
    unseen = {kind: [r for seed in arguments.seeds for r in trial.unseen(kind, seed)] for kind in KINDS}
    evaluate = trial.reproduction.evaluate
    found: dict[str, Any] = {"stored": {kind: _stored(trial.folders[kind]) for kind in KINDS}}
    found["unseen_rows"] = _gap({kind: _counts(replies) for kind, replies in unseen.items()}, evaluate)
    if arguments.requests:
        served = {kind: [(a, s) for a, s in trial.served(kind)] for kind in KINDS}
        found["served"] = _gap(served, evaluate)
    print(json.dumps(found, indent=2))
    settings = {key: str(value) for key, value in vars(arguments).items()}
    provenance = collect(settings, arguments.seeds[0], "full")
    write_json(arguments.work / "eight_bits.json", found | {"load_average": os.getloadavg(), "provenance": provenance})
    gaps = [found[part]["gap"]["high"] for part in ("unseen_rows", "served") if part in found]
    return int(any(high is not None and high < 0 for high in gaps))


if __name__ == "__main__":
    run_command(main)
