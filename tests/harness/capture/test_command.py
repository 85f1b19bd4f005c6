"""`python -m harness.capture` as a process: killed and run again, and given nonsense."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.capture.store import MANIFEST, Store
from harness.files import write_jsonl
from tests.toy import write_verifier

SETTINGS = {
    "capture": {"aux_layers": [1, 3, 4], "shard_rows": 4, "max_num_seqs": 4, "preflight_rows": 2},
    "reply": {"max_new_tokens": 120},
    "min_supervised_tokens": 1,
    "max_model_len": 256,
    "dtype": "float32",
    "scale": "smoke",
}


def command(folder: Path, settings: dict) -> list[str]:
    arguments = ["--verifier", str(folder / "verifier"), "--prompts", str(folder / "train.jsonl")]
    call = [sys.executable, "-m", "harness.capture", "--settings", json.dumps(settings), *arguments]
    return [*call, "--out", str(folder / "capture")]


def test_a_setting_that_does_not_exist_ends_the_command_with_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, SETTINGS | {"max_model_length": 4}), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "error: --settings: max_model_length: no such key. Fix: max_model_len\n"


def test_a_verifier_that_does_not_exist_ends_the_command_with_one_line(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path, SETTINGS), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "config.json: no such file. Fix: " in done.stderr
    assert "Traceback" not in done.stderr


def shards(folder: Path) -> dict[str, tuple[int, int]]:
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder.glob("shard_*.safetensors")}


@pytest.mark.slow
def test_a_killed_capture_goes_on_and_repeats_no_finished_shard(tmp_path: Path) -> None:
    write_verifier(tmp_path / "verifier")
    rows = [{"id": f"row-{i}", "messages": [{"role": "user", "content": f"what is {i}"}]} for i in range(80)]
    write_jsonl(tmp_path / "train.jsonl", rows)
    with (tmp_path / "log").open("w") as log:
        first = subprocess.Popen(command(tmp_path, SETTINGS), stdout=log, stderr=log)
        give_up = time.monotonic() + 120
        while len(shards(tmp_path / "capture")) < 3 and first.poll() is None and time.monotonic() < give_up:
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
        first.wait(timeout=30)
    kept = shards(tmp_path / "capture")
    assert 3 <= len(kept) < 20, (tmp_path / "log").read_text()[-3000:]
    assert not (tmp_path / "capture" / MANIFEST).exists()
    done = subprocess.run(command(tmp_path, SETTINGS), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{len(kept)} of 20 shards are finished already" in done.stderr
    assert f"/{80 - 4 * len(kept)} replies" in done.stderr
    now = shards(tmp_path / "capture")
    assert len(now) == 20
    assert {name: now[name] for name in kept} == kept
    store = Store(tmp_path / "capture")
    assert [store[i].id for i in range(len(store))] == [row["id"] for row in rows]
    assert store.manifest["preflight"]["argmax_differs"] == 0
