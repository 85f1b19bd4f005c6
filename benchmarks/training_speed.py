"""Training speed and peak memory of our trainer against upstream speculators 0.9.0's, for each algorithm.

    python -m benchmarks.training_speed [--algorithms NAME ...] [--draft-vocab-size N] [--turns 10] [--out FILE]

Both read the same captured rows in packs of up to 1024 tokens, train drafts of the same size with the same draft
vocabulary, in bfloat16 and with the same threads. Each is a process of its own and keeps its own loss, optimiser and
schedule. They make their steps by turns, one of ours, one of upstream's, so that the machine's moods meet both alike.
A step is everything from one to the next: reading the batch, the passes, the optimiser, the log. On a machine that
others use, with one thread a side (`taskset -c 0`), the ratio of processor times says more than that of the clock. The
peak is that of the whole program: start, training, validation, checkpoint.

It needs a finished capture. Exit code 1 when an algorithm trains less than twice as fast as upstream or takes more
memory.
"""

import argparse
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack, closing
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import algorithms
from benchmarks.trainers import Trainers, environment
from benchmarks.turns import Worker, by_turns
from harness.config import load_reproduction, validate
from harness.errors import UserError, run_command
from harness.files import write_json
from harness.progress import log

SPEED_MIN, MEMORY_MAX = 2.0, 1.0
MODULES = {"ours": "benchmarks.our_trainer", "upstream": "benchmarks.upstream_trainer"}


def _measure(trainers: Trainers, name: str, knobs: Any, work: Path, turns: int) -> list[dict[str, dict[str, Any]]]:
    """Both sides by turns: the figures of each turn, and last those of the programs."""
    with ExitStack() as stack:
        workers = {}
        for side, module in MODULES.items():
            folder = work / name / side
            folder.mkdir(parents=True)
            options = getattr(trainers, side)(name, knobs, folder)
            given = [str(folder / "figures.jsonl"), *options] if side == "upstream" else options
            command = [sys.executable, "-m", module, *given]
            workers[side] = Worker(command, environment(trainers.cores), folder / "log.txt")
            stack.enter_context(closing(workers[side]))
        return list(by_turns(workers, turns))


def summarise(found: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Tokens per second of all turns together, their ratio with its interval over turns, and both peaks.

    Args:
        found: `tokens` and `seconds` of each turn by side, and last `peak_memory_bytes` of each program.
    """
    from harness.evaluation.statistics import paired_ratio

    *turns, programs = found
    summary: dict[str, Any] = {}
    records = {}
    for side in MODULES:
        steps = [turn[side] for turn in turns]
        records[side] = [
            {"id": i, "output_tokens": s["tokens"], "latency_s": s["seconds"]} for i, s in enumerate(steps)
        ]
        sums = {key: sum(step[key] for step in steps) for key in ("tokens", "seconds", "processor_seconds")}
        summary[side] = sums | {
            "tokens_per_s": sums["tokens"] / sums["seconds"],
            "tokens_per_processor_s": sums["tokens"] / sums["processor_seconds"],
            "peak_memory_bytes": programs[side]["peak_memory_bytes"],
        }
    summary["speed_ratio"] = asdict(paired_ratio(records["upstream"], records["ours"]))
    summary["processor_ratio"] = (
        summary["ours"]["tokens_per_processor_s"] / summary["upstream"]["tokens_per_processor_s"]
    )
    summary["memory_ratio"] = summary["ours"]["peak_memory_bytes"] / summary["upstream"]["peak_memory_bytes"]
    return summary


def _row(name: str, found: dict[str, Any]) -> str:
    speed, sides = found["speed_ratio"], [found[side] for side in MODULES]
    speeds = "".join(f"{side['tokens_per_s']:9.0f}" for side in sides)
    peaks = "".join(f"{side['peak_memory_bytes'] / 2**20:9.0f}" for side in sides)
    times = f"{speed['value']:.2f} [{speed['low']:.2f}, {speed['high']:.2f}]"
    return f"{name:10}{speeds}{times:>26}{found['processor_ratio']:11.2f}{peaks}{found['memory_ratio']:8.2f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_speed", description=__doc__.split("\n")[0])
    parser.add_argument("--algorithms", nargs="+", choices=algorithms.NAMES, default=list(algorithms.NAMES))
    parser.add_argument("--reproduction", default="smollm2_135m", help="its capture and settings are used")
    parser.add_argument(
        "--draft-vocab-size", type=int, help="instead of the reproduction's, for drafts with a vocabulary of their own"
    )
    parser.add_argument("--turns", type=int, default=10, help="measured optimiser steps a side, of 1024 packed tokens")
    parser.add_argument("--out", type=Path, help="also write the figures to this file as JSON")
    return parser.parse_args()


def _trainers(arguments: argparse.Namespace, work: Path) -> tuple[Trainers, dict[str, Any]]:
    """What both sides are told, with the rows written, and our settings of each algorithm."""
    reproduction = load_reproduction(arguments.reproduction)
    if missing := [name for name in arguments.algorithms if name not in reproduction.algorithms]:
        raise UserError(f"--algorithms {missing[0]}: not in {arguments.reproduction}. Fix: add it, or leave it out")
    knobs = {}
    for name in arguments.algorithms:
        given = reproduction.algorithms[name]
        if arguments.draft_vocab_size and "draft_vocab_size" in given:
            given = given | {"draft_vocab_size": arguments.draft_vocab_size}
        knobs[name] = validate(algorithms.config_class(name), given, f"settings of {name}")
    # No saved state in the middle: upstream saves at the end of an epoch alone.
    training = reproduction.training.model_copy(update={"epochs": 1, "checkpoint_minutes": 1e6})
    trainers = Trainers(
        Path("models") / arguments.reproduction, Path("results") / arguments.reproduction / "capture",
        reproduction.capture.aux_layers, work / "rows", training, arguments.turns + 2, len(os.sched_getaffinity(0)),
    )  # fmt: skip
    trainers.write_rows(sorted({each.draft_vocab_size for each in knobs.values()} - {None}))
    return trainers, knobs


def main() -> int:
    """Measure, print a table, judge."""
    arguments = _arguments()
    work = Path(tempfile.mkdtemp(prefix="training_speed_"))
    found = {}
    try:
        trainers, knobs = _trainers(arguments, work)
        print(f"{'':10}{'tokens/s':>18}{'':26}{'processor':>11}{'peak MiB':>18}\n{'algorithm':10}{'ours':>9}"
              f"{'upstream':>9}{'ratio [95 %]':>26}{'time ratio':>11}{'ours':>9}{'upstream':>9}{'ratio':>8}",
              flush=True)  # fmt: skip
        for name in arguments.algorithms:
            log(f"{name}: both trainers start")
            found[name] = summarise(_measure(trainers, name, knobs[name], work, arguments.turns))
            print(_row(name, found[name]), flush=True)
    finally:
        shutil.rmtree(work)
    if arguments.out:
        from harness.provenance import collect

        source = collect({key: str(value) for key, value in vars(arguments).items()}, trainers.training.seed, "full")
        source["versions"]["speculators"] = metadata.version("speculators")
        write_json(arguments.out, {"algorithms": found, "load_average": os.getloadavg(), "provenance": source})
    slow = [n for n, f in found.items() if f["speed_ratio"]["value"] < SPEED_MIN or f["memory_ratio"] > MEMORY_MAX]
    print(f"at least {SPEED_MIN:g} times as fast, at no more memory: {'all' if not slow else 'not ' + ', '.join(slow)}")
    return int(bool(slow))


if __name__ == "__main__":
    run_command(main)
