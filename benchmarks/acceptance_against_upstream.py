"""Served acceptance length of drafts that we trained against drafts that upstream speculators 0.9.0 trained.

    python -m benchmarks.acceptance_against_upstream [--algorithms NAME ...] [--steps 100] [--epochs 2] [--requests 40]

Both sides read the same captured rows equally often in the same number of optimiser steps of 1024 packed tokens, make
drafts of the same size with the same draft vocabulary and mask token, with the same threads and in bfloat16. Each keeps
its own loss, optimiser, schedule and norms: ours are the reproduction's, upstream's its defaults. Both drafts are then
served one after the other by the same server and asked the same held-out prompts.

It needs a finished capture. It works piece by piece (rows, then two trainings and two measurements an algorithm) under
--work; a finished piece is not made again, and `--pieces 1` stops after the next one. Delete a folder to make it anew.
Exit code 1 when ours accepts less than upstream, beyond the 95% interval of the difference over prompts.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import algorithms
from benchmarks.trainers import PACK_TOKENS, Trainers, environment
from benchmarks.upstream_options import upstream_options
from harness.config import load_reproduction, validate
from harness.errors import UserError, run_command
from harness.files import file_sha256, read_jsonl, write_json
from harness.progress import log, meter

if TYPE_CHECKING:
    from harness.evaluation.statistics import Interval

SIDES = ("upstream", "ours")
SOURCES = ("word_problems", "instructions")


class Piece(NamedTuple):
    """One unit of work: `make` does it and returns what is kept in `file`, beside what it was made from."""

    name: str
    file: Path
    made_from: dict[str, Any]
    make: Callable[[], dict[str, Any]]

    def found(self) -> dict[str, Any] | None:
        """What was kept of an earlier run with the same settings."""
        kept = json.loads(self.file.read_text()) if self.file.exists() else {}
        return kept if kept.get("made_from") == self.made_from else None

    def run(self) -> None:
        """Do it and keep the result."""
        log(f"{self.name}: started")
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.file, self.make() | {"made_from": self.made_from})


class Comparison:
    """What is compared, and where its parts lie."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.work = arguments, arguments.work
        self.reproduction = load_reproduction(arguments.reproduction)
        self.verifier = Path("models") / arguments.reproduction
        self.results = Path("results") / arguments.reproduction
        if arguments.steps % arguments.epochs:
            raise UserError(f"--steps = {arguments.steps}: no multiple of --epochs. Fix: use one")
        self.training = self.reproduction.training.model_copy(update={"epochs": arguments.epochs})
        self.cores = len(os.sched_getaffinity(0))

    def knobs(self, name: str) -> Any:
        """Our settings of an algorithm, the reproduction's."""
        given = self.reproduction.algorithms.get(name)
        if given is None:
            raise UserError(f"--algorithms {name}: not in {self.arguments.reproduction}. Fix: add it, or leave it out")
        return validate(algorithms.config_class(name), given, f"settings of {name}")

    def pieces(self) -> list[Piece]:
        """Everything that must be there before the report, in order."""
        capture = file_sha256(self.results / "capture" / "manifest.json")
        rows = {
            "capture": capture,
            "steps": self.arguments.steps,
            "training": self.training.model_dump(),
            "vocabularies": self.vocabularies(),
        }
        made = [Piece("rows", self.work / "rows.json", rows, self.write_rows)]
        for name in self.arguments.algorithms:
            knobs = self.knobs(name)
            settings = {"ours": knobs.model_dump(), "upstream": upstream_options(name, knobs)}
            for side in SIDES:
                from_ = {"rows": rows, "side": side, "settings": settings[side], "threads": self.cores}
                train = {"ours": self.train_ours, "upstream": self.train_upstream}[side]
                folder = self.work / name / side
                made.append(Piece(f"{name}: {side} trains", folder / "trained.json", from_, _call(train, name, folder)))
            for side in SIDES:
                folder = self.work / name / side
                measure = _call(self.measure, name, folder)
                from_ = {"requests": self.arguments.requests, "draft": _hash_of_draft(folder)}
                made.append(Piece(f"{name}: {side} is served", folder / "measured.json", from_, measure))
        return made

    def vocabularies(self) -> list[int]:
        """Sizes of the reduced draft vocabularies of the reproduction."""
        sizes = {self.knobs(name).draft_vocab_size for name in self.reproduction.algorithms}
        return sorted(sizes - {None})

    def trainers(self) -> Trainers:
        """What both trainers are told."""
        return Trainers(
            self.verifier, self.results / "capture", self.reproduction.capture.aux_layers, self.work / "rows",
            self.training, self.arguments.steps, self.cores,
        )  # fmt: skip

    def write_rows(self) -> dict[str, Any]:
        """The rows in both layouts."""
        return self.trainers().write_rows(self.vocabularies())

    def train_ours(self, name: str, folder: Path) -> dict[str, Any]:
        """`python -m harness.training`."""
        command = [sys.executable, "-m", "harness.training", *self.trainers().ours(name, self.knobs(name), folder)]
        subprocess.run(command, check=True, env=environment(self.cores), stdout=subprocess.DEVNULL)
        taken = [row for row in read_jsonl(folder / "state" / "metrics.jsonl") if "loss" in row]
        counts = [after - before for before, after in pairwise([0, *(row["tokens"] for row in taken)])]
        speeds = [(count, count / row["tokens_per_s"]) for count, row in zip(counts, taken, strict=True)]
        summary = json.loads((folder / "state" / "summary.json").read_text())
        losses = [row["loss"] for row in taken]
        return _trained(speeds, losses, summary["peak_memory_bytes"], self.arguments.steps)

    def train_upstream(self, name: str, folder: Path) -> dict[str, Any]:
        """Upstream's own trainer, in a process of its own; what it prints goes to `train.log`."""
        steps, figures = self.arguments.steps, folder / "figures.jsonl"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        options = self.trainers().upstream(name, self.knobs(name), folder)
        command = [sys.executable, "-m", "benchmarks.upstream_trainer", str(figures), *options]
        _run_counted(command, environment(self.cores), folder / "train.log", figures, steps, name)
        *taken, end = read_jsonl(figures)
        taken = [row for row in taken if "train" in row]
        seconds = [row["profile"]["step_ms"] / 1000 for row in taken]
        speeds = [(row["profile"]["tokens_per_s"] * s, s) for row, s in zip(taken, seconds, strict=True)]
        _adopt(folder, self.knobs(name).speculative_tokens)
        losses = [row["train"]["loss"] for row in taken]
        return _trained(speeds, losses, end["peak_memory_bytes"], steps) | {"options": " ".join(options)}

    def measure(self, name: str, folder: Path) -> dict[str, Any]:
        """Serve the draft and count what is accepted, by the same code as the reproduction's measurements."""
        from harness.evaluation.measure import Measurement
        from harness.evaluation.replies import Prompts
        from harness.evaluation.settings import Expected, MeasureSettings, measure_settings
        from harness.serving import running_server

        reproduction = self.reproduction
        expected = Expected(
            method=algorithms.engine_method(name), num_speculative_tokens=self.knobs(name).speculative_tokens
        )
        settings = MeasureSettings.model_validate(measure_settings(reproduction, expected))
        heldout = read_jsonl(self.results / "prompts" / "heldout.jsonl")
        rows = [row for s in SOURCES for row in [r for r in heldout if r["source"] == s][: self.arguments.requests]]
        prompts = Prompts(rows, self.verifier, reproduction.data.system_prompt)
        draft, out = folder / "draft", folder / "measured"
        out.mkdir(exist_ok=True)
        with running_server(str(draft), reproduction.serve, out / "server.log") as server:
            run = Measurement(settings, f"{name} {folder.name}", self.verifier, prompts, out)
            run.check(server)
            run.acceptance(server)
        found = json.loads((out / "acceptance.json").read_text())
        replies = [
            {"id": row["id"], "source": row["source"], "accepted": sum(row["spec"]["accepted_per_step"]),
             "drafts": len(row["spec"]["accepted_per_step"])}
            for row in read_jsonl(out / "replies.jsonl")
        ]  # fmt: skip
        return {"benchmarks": found["benchmarks"], "identity_checks": found["identity_checks"], "replies": replies}


def _call(function: Callable[..., dict[str, Any]], *arguments: Any) -> Callable[[], dict[str, Any]]:
    return lambda: function(*arguments)


def _hash_of_draft(folder: Path) -> str | None:
    path = folder / "draft" / "model.safetensors"
    return file_sha256(path) if path.exists() else None


def _run_counted(
    command: list[str], environment: dict[str, str], out: Path, figures: Path, steps: int, name: str
) -> None:
    """Run a command that adds a line to `figures` with every step."""
    with out.open("w") as text, meter(f"upstream {name}", steps * PACK_TOKENS, "tokens") as bar:
        process = subprocess.Popen(command, env=environment, stdout=text, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                time.sleep(1)
                done = PACK_TOKENS * (figures.read_text().count('"train"') if figures.exists() else 0)
                if done > bar.done:
                    bar.advance(done - bar.done)
        finally:
            process.kill()
    if process.returncode:
        raise RuntimeError(f"upstream's trainer ended with {process.returncode}:\n{out.read_text()[-2000:]}")


def _adopt(folder: Path, speculative_tokens: int) -> None:
    """Upstream's last checkpoint as `draft`: the tensors as they are, and as many drafts a step as ours makes."""
    epochs = [path for path in (folder / "checkpoints").iterdir() if path.name.isdigit()]
    last = max(epochs, key=lambda path: int(path.name))
    draft = folder / "draft"
    draft.mkdir()
    shutil.copy(last / "model.safetensors", draft)
    content = json.loads((last / "config.json").read_text())
    content.pop("auto_map", None)  # names code that does not come with it
    content["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = speculative_tokens
    write_json(draft / "config.json", content)
    shutil.rmtree(folder / "checkpoints")


def _trained(speeds: list[tuple[float, float]], losses: list[float], peak: int, steps: int) -> dict[str, Any]:
    """The figures of one training. Its speed is that of the median step: a busy moment of the machine counts once.

    Args:
        speeds: (tokens without padding, seconds) of each step.
    """
    if len(speeds) != steps:
        raise RuntimeError(f"{len(speeds)} steps were trained, not {steps}")
    return {
        "steps": steps,
        "tokens": round(sum(tokens for tokens, _ in speeds)),
        "seconds": sum(seconds for _, seconds in speeds),
        "tokens_per_s": median(tokens / seconds for tokens, seconds in speeds),
        "peak_memory_bytes": peak,
        "last_loss": sum(losses[-10:]) / len(losses[-10:]),
        "load_average": os.getloadavg(),
    }


def _verdict(gap: "Interval") -> str:
    if gap.low is None or gap.high is None or gap.low <= 0 <= gap.high:
        return "equal within the interval"
    return "more" if gap.low > 0 else "less"


def _differences(measured: dict[str, dict[str, Any]], resamples: int, seed: int) -> dict[str, Any]:
    """Ours minus upstream's acceptance length by source and over all, paired by prompt."""
    from harness.evaluation.statistics import pooled_gap

    by_id = {side: {row["id"]: row for row in measured[side]["replies"]} for side in SIDES}
    common = [row for key, row in by_id["ours"].items() if key in by_id["upstream"]]
    found = {}
    for source in (*SOURCES, "all"):
        ids = [row["id"] for row in common if source in (row["source"], "all")]
        counts = {
            side: ([rows[key]["accepted"] for key in ids], [rows[key]["drafts"] for key in ids])
            for side, rows in by_id.items()
        }
        gap = pooled_gap(counts["ours"], counts["upstream"], resamples, seed)
        lengths = {side: 1 + sum(accepted) / sum(drafts) for side, (accepted, drafts) in counts.items()}
        found[source] = lengths | {"difference": gap.as_dict(), "verdict": _verdict(gap)}
    return found


def _report(comparison: Comparison) -> dict[str, Any]:
    evaluate = comparison.reproduction.evaluate
    found = {}
    for name in comparison.arguments.algorithms:
        kept = {
            part: {side: json.loads((comparison.work / name / side / f"{part}.json").read_text()) for side in SIDES}
            for part in ("trained", "measured")
        }
        differences = _differences(kept["measured"], evaluate.bootstrap_resamples, evaluate.seed)
        benchmarks = {side: kept["measured"][side]["benchmarks"] for side in SIDES}
        found[name] = {"trained": kept["trained"], "benchmarks": benchmarks, "difference": differences}
    return found


def _print(found: dict[str, Any]) -> None:
    print(f"{'algorithm':10} {'side':9} {'steps':>5} {'tokens':>8} {'tokens/s':>8} {'peak MiB':>8} {'last loss':>9}")
    for name, figures in found.items():
        for side, trained in figures["trained"].items():
            peak = trained["peak_memory_bytes"] / 2**20
            print(f"{name:10} {side:9} {trained['steps']:5} {trained['tokens']:8} {trained['tokens_per_s']:8.0f} "
                  f"{peak:8.0f} {trained['last_loss']:9.3f}")  # fmt: skip
    print(
        f"\n{'algorithm':10} {'benchmark':14} {'ours':>22} {'upstream':>22} {'ours - upstream':>25}  accepted by ours"
    )
    for name, figures in found.items():
        for source, compared in figures["difference"].items():
            lengths = [f"{compared[side]:.3f}{_interval(figures['benchmarks'][side].get(source))}"
                       for side in ("ours", "upstream")]  # fmt: skip
            gap = compared["difference"]
            difference = f"{gap['value']:+.3f}{_interval(gap)}"
            print(f"{name:10} {source:14} {lengths[0]:>22} {lengths[1]:>22} {difference:>25}  {compared['verdict']}")


def _interval(figures: dict[str, Any] | None) -> str:
    return f" [{figures['low']:.3f}, {figures['high']:.3f}]" if figures else ""


def _arguments() -> argparse.Namespace:
    name = "acceptance_against_upstream"
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=__doc__.split("\n")[0])
    parser.add_argument("--algorithms", nargs="+", choices=algorithms.NAMES, default=list(algorithms.NAMES))
    parser.add_argument("--reproduction", default="smollm2_135m", help="its capture, prompts and settings are used")
    parser.add_argument("--steps", type=int, default=100, help="optimiser steps of 1024 packed tokens a side")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the rows; how many rows follows")
    parser.add_argument("--requests", type=int, default=40, help="held-out prompts of each benchmark")
    parser.add_argument("--work", type=Path, default=Path("results/benchmarks/acceptance_against_upstream"))
    parser.add_argument("--pieces", type=int, help="stop after this many pieces of work")
    return parser.parse_args()


def main() -> int:
    """Make what is missing, then report."""
    arguments = _arguments()
    comparison = Comparison(arguments)
    made = 0
    while missing := next((piece for piece in comparison.pieces() if piece.found() is None), None):
        if arguments.pieces is not None and made >= arguments.pieces:
            print(f"next: {missing.name}")
            return 0
        missing.run()
        made += 1
    found = _report(comparison)
    _print(found)
    from harness.provenance import collect

    source = collect({key: str(value) for key, value in vars(arguments).items()}, comparison.training.seed, "full")
    source["versions"]["speculators"] = metadata.version("speculators")
    write_json(arguments.work / "comparison.json", {"algorithms": found, "provenance": source})
    return int(any(s["verdict"] == "less" for f in found.values() for s in f["difference"].values()))


if __name__ == "__main__":
    run_command(main)
