"""`python -m harness.verifiers --settings JSON --out models/<name>`: called by the rule `verifier`."""

import argparse
from pathlib import Path

from harness.config import parse_settings
from harness.errors import run_command
from harness.verifiers.prepare import Settings, prepare


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.verifiers", description=__doc__)
    parser.add_argument("--settings", required=True, help='JSON: {"verifier": {...}, "checks": [...], "scale": "full"}')
    parser.add_argument("--out", required=True, type=Path, help="folder to make, models/<name>")
    arguments = parser.parse_args()
    prepare(parse_settings(arguments.settings, Settings), arguments.out)


if __name__ == "__main__":
    run_command(main)
