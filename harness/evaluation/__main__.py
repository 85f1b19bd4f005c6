"""`python -m harness.evaluation measure|match|parity|lossless|sweep|verification|speed`: called by the rules."""

import argparse
import json
from pathlib import Path

from harness import provenance
from harness.config import parse_settings
from harness.errors import UserError, run_command
from harness.evaluation.settings import (
    LosslessSettings,
    MatchSettings,
    MeasureSettings,
    ParitySettings,
    SpeedSettings,
    SweepSettings,
)
from harness.files import read_jsonl, write_json


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.evaluation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, folders in {
        "measure": ("model", "verifier", "prompts"),
        "match": ("base", "variant"),
        "parity": ("draft", "verifier", "measured"),
        "lossless": ("base", "variant", "verifier"),
        "sweep": ("model", "verifier", "prompts"),
        "verification": ("verifier", "prompts"),
        "speed": ("base", "measured"),
    }.items():
        command = commands.add_parser(name)
        command.add_argument("--settings", required=True, help="JSON, a slice of the reproduction")
        command.add_argument("--out", type=Path, required=True)
        for folder in folders:
            command.add_argument(f"--{folder}", type=Path, required=True)
        if name == "speed":
            command.add_argument("--verification", type=Path, help="file that `verification` wrote")
            command.add_argument("--swept", type=Path, nargs="*", default=[], help="files that `sweep` wrote")
        if name in ("measure", "sweep", "speed"):
            command.add_argument("--variant", required=True, help="name of the variant")
        if name == "parity":
            command.add_argument("--training", type=Path, help="summary.json of the draft's training, to hold against")
            command.add_argument("--prompts", type=Path, help="heldout.jsonl, to hold the served prompts against")
    return parser


def _replies(folder: Path, name: str = "replies.jsonl") -> list[dict]:
    path = folder / name
    try:
        return read_jsonl(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Fix: run `python -m harness.evaluation measure` for it first") from None
    except ValueError as error:
        raise UserError(f"{path}: damaged ({error}). Fix: delete it and measure again") from None


def _measure(arguments: argparse.Namespace) -> None:
    from harness.evaluation.measure import measure

    settings = parse_settings(arguments.settings, MeasureSettings)
    measure(settings, arguments.variant, arguments.model, arguments.verifier, arguments.prompts, arguments.out)


def _match(arguments: argparse.Namespace) -> None:
    from harness.evaluation.match import compare

    settings = parse_settings(arguments.settings, MatchSettings)
    found = compare(_replies(arguments.base), _replies(arguments.variant), settings)
    source = provenance.collect(settings.model_dump(), None, settings.scale)
    write_json(arguments.out, found | {"provenance": source})


def _parity(arguments: argparse.Namespace) -> None:
    from harness.evaluation.parity import run_parity

    settings = parse_settings(arguments.settings, ParitySettings)
    rows, expected = _replies(arguments.measured), _validation_length(arguments.training)
    found = run_parity(arguments.draft, arguments.verifier, rows, settings, expected, arguments.prompts)
    source = provenance.collect(settings.model_dump(), settings.seed, settings.scale)
    write_json(arguments.out, found | {"provenance": source})


def _validation_length(summary: Path | None) -> float | None:
    if summary is None:
        return None
    try:
        return json.loads(summary.read_text())["validation"].get("acceptance_length_pooled")
    except (FileNotFoundError, ValueError, LookupError) as error:
        raise UserError(f"{summary}: no summary of a training ({error}). Fix: train again, or leave it out") from None


def _lossless(arguments: argparse.Namespace) -> None:
    from harness.evaluation.lossless import run_lossless

    settings = parse_settings(arguments.settings, LosslessSettings)
    base, variant = (_replies(folder, "samples.jsonl") for folder in (arguments.base, arguments.variant))
    found = run_lossless(arguments.verifier, base, variant, settings)
    source = provenance.collect(settings.model_dump(), settings.seed, settings.scale)
    write_json(arguments.out, found | {"provenance": source})


def _sweep(arguments: argparse.Namespace) -> None:
    from harness.evaluation.sweep import sweep

    settings = parse_settings(arguments.settings, SweepSettings)
    sweep(settings, arguments.variant, arguments.model, arguments.verifier, arguments.prompts, arguments.out)


def _verification(arguments: argparse.Namespace) -> None:
    from harness.evaluation.verification import verification

    settings = parse_settings(arguments.settings, SweepSettings)
    verification(settings, arguments.verifier, arguments.prompts, arguments.out)


def _speed(arguments: argparse.Namespace) -> None:
    from harness.evaluation.speed import measure_speed

    settings = parse_settings(arguments.settings, SpeedSettings)
    found = measure_speed(arguments.base, arguments.measured, arguments.verification, arguments.swept, settings)
    source = provenance.collect(settings.model_dump(), settings.seed, settings.scale)
    write_json(arguments.out, {"variant": arguments.variant} | found | {"provenance": source})


COMMANDS = {
    "measure": _measure,
    "match": _match,
    "parity": _parity,
    "lossless": _lossless,
    "sweep": _sweep,
    "verification": _verification,
    "speed": _speed,
}


def main() -> None:
    """Run one of the commands."""
    arguments = _parser().parse_args()
    COMMANDS[arguments.command](arguments)


if __name__ == "__main__":
    run_command(main)
