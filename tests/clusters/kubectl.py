"""Stands in for kubectl: a Job runs as a process of this machine. Put on PATH as `kubectl` by test_kubernetes.py.

KUBECTL_FOLDER keeps a folder for each Job: manifest.json, process id, and the exit code once it ended.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

FOLDER = Path(os.environ["KUBECTL_FOLDER"])


def create() -> None:
    """Start the one container's command in its working folder; a shell notes how it ended."""
    job = json.load(sys.stdin)
    own = FOLDER / job["metadata"]["name"]
    own.mkdir()
    (own / "manifest.json").write_text(json.dumps(job))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    noted = f'"$@"; echo $? >"{own}/code"'
    process = subprocess.Popen(
        ["/bin/sh", "-c", noted, "sh", *container["command"]], cwd=container["workingDir"], start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=(own / "log").open("w"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    (own / "pid").write_text(str(process.pid))


def get(name: str) -> None:
    """The Job as far as its conditions; nothing where there is none."""
    own = FOLDER / name
    if not own.exists():
        return
    code = (own / "code").read_text().strip() if (own / "code").exists() else ""
    kinds = {"": [], "0": ["Complete"]}.get(code, ["Failed"])
    print(json.dumps({"status": {"conditions": [{"type": kind, "status": "True"} for kind in kinds]}}))


def delete(name: str) -> None:
    """End the Job's processes and forget it."""
    own = FOLDER / name
    if own.exists():
        os.killpg(int((own / "pid").read_text()), signal.SIGKILL)
        own.rename(own.with_name(f"deleted-{name}"))


if __name__ == "__main__":
    verb, words = sys.argv[1], sys.argv[2:]
    if verb == "create":
        create()
    else:
        {"get": get, "delete": delete}[verb](words[1])
