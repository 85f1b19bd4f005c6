"""`python -m harness.capture.producer`: an engine beside a training, making the packs that it reads next.

Started by `live.LiveStore`; ends with the training, however that ends.
"""

import argparse
import json
import os
from pathlib import Path

from harness.errors import run_command
from harness.orphans import die_with_parent
from harness.serving.environment import ensure_environment


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.capture.producer", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON, see harness/capture/settings.py")
    parser.add_argument("--verifier", required=True, type=Path, help="folder of the verifier")
    parser.add_argument("--replies", required=True, type=Path, help="folder of the store of replies")
    parser.add_argument("--packs", required=True, type=Path, help="JSON: [[number, [row, ...]], ...]")
    parser.add_argument("--out", required=True, type=Path, help="folder that receives the packs")
    parser.add_argument("--ahead", type=int, help="keep at most so many packs there; leave it out to make all at once")
    parser.add_argument("--parent", required=True, type=int, help="id of the training's process")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    ensure_environment()
    die_with_parent()
    from harness.capture.engine import EngineSize
    from harness.capture.engines import running_engine
    from harness.capture.packs import layers_of, produce
    from harness.capture.settings import CaptureSettings
    from harness.capture.store import Store
    from harness.config import parse_settings
    from harness.progress import log

    settings = parse_settings(arguments.settings, CaptureSettings)
    store, parent = Store(arguments.replies), arguments.parent
    packs = json.loads(arguments.packs.read_text())
    longest = max(len(store[row].token_ids) for _, rows in packs for row in rows)
    together = min(settings.capture.max_num_seqs, max(len(rows) for _, rows in packs))
    size = EngineSize(longest, longest + 1, together, settings.tensor_parallel_size)
    with running_engine(settings, arguments.verifier, size, layers_of(store), arguments.packs.parent) as engine:
        log(f"engine ready, {len(packs)} packs to make")
        # Asked for the case that the training ended before `die_with_parent` was called.
        produce(store, engine, settings, arguments.out, packs, arguments.ahead, lambda: os.getppid() == parent)


if __name__ == "__main__":
    run_command(main)
