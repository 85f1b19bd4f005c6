"""`python -m harness.checkpoint COMMAND`; README.md in this folder tells of each command.

A command is a module with `HELP`, `add_arguments(parser)` and `run(given)`, which gives the exit code. They are
imported by name, so that a change of one command does not count as a change of the others' code.
"""

import argparse
from importlib import import_module

from harness.errors import run_command

COMMANDS = {
    "lint": "harness.checkpoint.lint_command",
    "edit": "harness.checkpoint.edit",
    "convert": "harness.checkpoint.convert.command",
    "diff": "harness.checkpoint.diff",
    "card": "harness.checkpoint.card",
    "publish": "harness.checkpoint.publish",
}


def parser() -> argparse.ArgumentParser:
    """The command line with every command."""
    made = argparse.ArgumentParser(
        prog="python -m harness.checkpoint", description="Draft checkpoints in the speculators format."
    )
    commands = made.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        command = import_module(module)
        one = commands.add_parser(name, help=command.HELP, description=command.__doc__)
        one.formatter_class = argparse.RawDescriptionHelpFormatter
        command.add_arguments(one)
        one.set_defaults(run=command.run)
    return made


def main() -> int:
    """Run one command."""
    given = parser().parse_args()
    return given.run(given)


if __name__ == "__main__":
    run_command(main)
