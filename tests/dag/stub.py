"""Stands in for every step of the DAG: writes the files that the real command would, in no time. See conftest.py.

Environment: STUB_FAIL=step makes that step print a log and fail; STUB_SLEEP=step makes it wait, as a long capture does;
STUB_SLOW=step makes it take some seconds. ran.jsonl in the current folder keeps what ran: step, variant, start and
end, and which GPUs it saw.
"""

import json
import os
import sys
import time
from pathlib import Path

FILES = {
    "verifiers": ["verifier.json"],
    "data": ["train.jsonl", "heldout.jsonl", "sources.json"],
    "training": ["config.json", "model.safetensors"],
    "verifier": ["verifier.json"],
    "draft": ["config.json", "model.safetensors"],
    "measure": ["server.json", "replies.jsonl", "acceptance.json", "samples.jsonl", "accuracy.json", "latency.json"],
    "reports": ["report.html"],
}


def _options(words: list[str]) -> dict[str, str]:
    """Flags with what stands behind each: a value, or nothing that is looked at."""
    following = [*words[1:], ""]
    return {word[2:]: after for word, after in zip(words, following, strict=True) if word.startswith("--")}


def _capture(out: Path) -> None:
    """Four shards, one after another; shards that are there stay as they are."""
    for number in range(4):
        shard = out / f"shard_{number}"
        if not shard.exists():
            shard.write_text(str(time.time()))
            if os.environ.get("STUB_SLEEP") == "capture" and number == 1:
                time.sleep(300)
    (out / "manifest.json").write_text("{}")


def _fail() -> None:
    sys.stdout.buffer.write(bytes(range(256)) + b"\n")
    print(*(f"line {number}" for number in range(100)), sep="\n")
    print("error: models/x: no such folder. Fix: make it")
    sys.exit(2)


def run(step: str) -> None:
    """The command of `step`, called by its package's `__main__.py`."""
    words = sys.argv[1:]
    options, started = _options(words), time.time()
    command = words[0] if words and not words[0].startswith("-") else step
    if os.environ.get("STUB_FAIL") == command:
        _fail()
    out = Path(options["out"])
    if command == "capture" and "job" in options:
        (out / f"job_{options['job']}" / "job.json").write_text("{}")
    elif command == "capture":
        _capture(out)
    elif command in FILES:
        for name in FILES[command]:
            (out / name).write_text("{}")
    else:
        out.write_text("{}")
    if command == "training":
        Path(options["state"], "summary.json").write_text("{}")
    time.sleep(8 if os.environ.get("STUB_SLOW") == command else 0.1)
    with open("ran.jsonl", "a") as ran:
        named = options.get("variant") or options.get("algorithm") or options.get("job") or ""
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        row = {"step": command, "of": Path(named).name, "started": started, "ended": time.time(), "gpus": seen}
        ran.write(json.dumps(row) + "\n")
