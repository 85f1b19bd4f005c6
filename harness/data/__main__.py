"""`python -m harness.data --settings JSON --verifier DIR --out DIR`: called by the rule `prompts`."""

import argparse
from pathlib import Path

from harness.config import parse_settings
from harness.data.prepare import Settings, prepare
from harness.errors import run_command


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.data", description=__doc__)
    parser.add_argument("--settings", required=True, help='JSON: {"data": {...}, "scale": "full"}')
    parser.add_argument("--verifier", required=True, type=Path, help="folder of the verifier, models/<name>")
    parser.add_argument("--out", required=True, type=Path, help="folder to write, results/<target>/prompts")
    arguments = parser.parse_args()
    prepare(parse_settings(arguments.settings, Settings), arguments.verifier, arguments.out)


if __name__ == "__main__":
    run_command(main)
