"""`python -m harness.evaluation measure|match|parity|sweep|verification|speed`: called by the rules."""

import argparse
from pathlib import Path

from harness import provenance
from harness.config import parse_settings
from harness.errors import UserError, run_command
from harness.evaluation.settings import MatchSettings, MeasureSettings, ParitySettings, SpeedSettings, SweepSettings
from harness.files import read_jsonl, write_json


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.evaluation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, folders in {
        "measure": ("model", "verifier", "prompts"),
        "match": ("base", "variant"),
        "parity": ("draft", "verifier", "measured"),
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
    return parser


def _replies(folder: Path) -> list[dict]:
    path = folder / "replies.jsonl"
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
    rows = _replies(arguments.measured)
    found = run_parity(arguments.draft, arguments.verifier, rows, settings)
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
