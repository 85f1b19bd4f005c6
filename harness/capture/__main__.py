"""`python -m harness.capture`: replies and hidden states of the verifier in one pass, into a sharded store."""

import argparse
from pathlib import Path

from harness.errors import run_command
from harness.serving.environment import ensure_environment


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.capture", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON, see harness/capture/settings.py")
    parser.add_argument("--verifier", required=True, type=Path, help="folder of the verifier")
    parser.add_argument("--prompts", required=True, type=Path, help="train.jsonl of the data step")
    parser.add_argument("--out", required=True, type=Path, help="folder of the store")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    ensure_environment()
    from harness.capture.run import capture
    from harness.capture.settings import CaptureSettings
    from harness.config import parse_settings
    from harness.progress import log

    settings = parse_settings(arguments.settings, CaptureSettings)
    manifest = capture(settings, arguments.verifier, arguments.prompts, arguments.out)
    log(
        f"{arguments.out}: {manifest['rows']} replies, {manifest['tokens']} positions, {manifest['supervised_tokens']} "
        f"tokens to learn from, {manifest['cut_at_limit']} cut at the limit, {manifest['tokens_per_s']} tokens/s"
    )


if __name__ == "__main__":
    run_command(main)
