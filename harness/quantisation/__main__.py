"""`python -m harness.quantisation verifier|draft`: called by the rules `quantise` and `redirect`."""

import argparse
from pathlib import Path

from harness.errors import run_command
from harness.quantisation.folders import quantise_verifier, redirect_draft
from harness.quantisation.schemes import SCHEMES


def main() -> None:
    """Quantise a verifier, or point a draft at another verifier."""
    parser = argparse.ArgumentParser(prog="python -m harness.quantisation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("verifier", help="write a verifier with 8-bit weights and activations")
    command.add_argument("--scheme", required=True, choices=sorted(SCHEMES))
    draft = commands.add_parser("draft", help="write a draft that is served with another verifier of the same shape")
    draft.add_argument("--draft", type=Path, required=True, help="folder of the draft")
    for each in (command, draft):
        each.add_argument("--verifier", type=Path, required=True, help="folder of the verifier")
        each.add_argument("--out", type=Path, required=True, help="folder to write")
    given = parser.parse_args()
    if given.command == "verifier":
        quantise_verifier(given.verifier, given.scheme, given.out)
    else:
        redirect_draft(given.draft, given.verifier, given.out)


if __name__ == "__main__":
    run_command(main)
