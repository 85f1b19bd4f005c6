"""`python -m harness.evaluation measure|match|parity|lossless|sweep|verification|speed`: called by the rules."""

import argparse
from pathlib import Path

from harness import provenance
from harness.config import parse_settings
from harness.errors import run_command
from harness.evaluation.results import (
    Asked,
    Compared,
    Prompt,
    Sampled,
    Summary,
    read_file,
    read_rows,
    require_own_tokens,
)
from harness.evaluation.settings import (
    LosslessSettings,
    MatchSettings,
    MeasureSettings,
    ParitySettings,
    SpeedSettings,
    SweepSettings,
)
from harness.files import write_json


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


def _measure(arguments: argparse.Namespace) -> None:
    from harness.evaluation.measure import measure

    settings = parse_settings(arguments.settings, MeasureSettings)
    measure(settings, arguments.variant, arguments.model, arguments.verifier, arguments.prompts, arguments.out)


def _match(arguments: argparse.Namespace) -> None:
    from harness.evaluation.match import compare

    settings = parse_settings(arguments.settings, MatchSettings)
    base, variant = (read_rows(folder / "replies.jsonl", Compared) for folder in (arguments.base, arguments.variant))
    found = compare(base, variant, settings)
    source = provenance.collect(settings.model_dump(), None, settings.scale)
    write_json(arguments.out, found | {"provenance": source})


def _parity(arguments: argparse.Namespace) -> None:
    from harness.evaluation.parity import run_parity

    settings = parse_settings(arguments.settings, ParitySettings)
    rows, expected = read_rows(arguments.measured / "replies.jsonl", Asked), _validation_length(arguments.training)
    require_own_tokens(rows, arguments.verifier)
    prompts = read_rows(arguments.prompts, Prompt) if arguments.prompts else None
    found = run_parity(arguments.draft, arguments.verifier, rows, settings, expected, prompts)
    source = provenance.collect(settings.model_dump(), settings.seed, settings.scale)
    write_json(arguments.out, found | {"provenance": source})


def _validation_length(summary: Path | None) -> float | None:
    if summary is None:
        return None
    return read_file(summary, Summary)["validation"].get("acceptance_length_pooled")


def _lossless(arguments: argparse.Namespace) -> None:
    from harness.evaluation.lossless import run_lossless

    settings = parse_settings(arguments.settings, LosslessSettings)
    base, variant = (read_rows(folder / "samples.jsonl", Sampled) for folder in (arguments.base, arguments.variant))
    require_own_tokens([*base, *variant], arguments.verifier)
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
