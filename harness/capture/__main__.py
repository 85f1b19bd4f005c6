"""`python -m harness.capture`: replies and hidden states of the verifier in one pass, into a sharded store."""

import argparse
from pathlib import Path

from harness.errors import UserError, run_command
from harness.serving.environment import ensure_environment


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.capture", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON, see harness/capture/settings.py")
    parser.add_argument("--verifier", required=True, type=Path, help="folder of the verifier")
    parser.add_argument("--prompts", required=True, type=Path, help="train.jsonl of the data step")
    parser.add_argument("--out", required=True, type=Path, help="folder of the store")
    parser.add_argument("--job", type=int, help="of capture.jobs jobs the one to do; without it their parts are joined")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    ensure_environment()
    from harness.capture.run import capture
    from harness.capture.settings import CaptureSettings
    from harness.config import parse_settings
    from harness.progress import log

    settings = parse_settings(arguments.settings, CaptureSettings)
    if arguments.job is not None and arguments.job < 0:
        raise UserError(f"--job = {arguments.job}: is below 0. Fix: use 0 to {settings.capture.jobs - 1}")
    manifest = capture(settings, arguments.verifier, arguments.prompts, arguments.out, arguments.job)
    if arguments.job is not None:
        log(f"{arguments.out}: job {arguments.job} of {settings.capture.jobs} is finished")
        return
    log(
        f"{arguments.out}: {manifest['rows']} replies, {manifest['tokens']} positions, {manifest['supervised_tokens']} "
        f"tokens to learn from, {manifest['cut_at_limit']} cut at the limit, {manifest['tokens_per_s']} tokens/s"
    )


if __name__ == "__main__":
    run_command(main)
