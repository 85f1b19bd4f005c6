"""Training from a live vLLM engine, as processes: killed and resumed, and held against the stored states."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.capture import run as capture_run
from harness.capture.settings import CaptureSettings
from harness.files import read_jsonl, write_jsonl
from tests import toy
from tests.harness.capture.reference import Reference
from tests.harness.training.toy_training import SETTINGS, TRAINING, without_clock

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
CAPTURE = {
    "capture": {"mode": "online", "aux_layers": [1, 3, 5], "shard_rows": 8, "max_num_seqs": 4, "preflight_rows": 2},
    "reply": {"max_new_tokens": 24}, "min_supervised_tokens": 2, "max_model_len": 128, "dtype": "float32",
    "scale": "smoke",
}  # fmt: skip
LIVE = SETTINGS | {"training": TRAINING | {"tokens_per_step": 160}, "live": CAPTURE}
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CI": "1"}


def run(place: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def words(name: str, mode: str) -> list[str]:
    live = in_mode(mode) if mode == "online" else None
    return [
        "harness.training", "--settings", json.dumps(LIVE | {"live": live}), "--algorithm", "eagle3",
        "--verifier", "verifier", "--capture", mode, "--out", f"{name}/draft", "--state", f"{name}/state",
    ]  # fmt: skip


def in_mode(mode: str) -> dict:
    return CAPTURE | {"capture": CAPTURE["capture"] | {"mode": mode}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """verifier/, and the same replies captured in folders that are called as the modes are, by transformers."""
    folder = tmp_path_factory.mktemp("live")
    verifier = toy.write_verifier(folder / "verifier")
    rows = [{"id": f"row-{i}", "messages": [{"role": "user", "content": f"what is {i}"}]} for i in range(16)]
    write_jsonl(folder / "train.jsonl", rows)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(capture_run, "_prove", lambda *_: None)
        layer_ids = [*CAPTURE["capture"]["aux_layers"], 6]
        patched.setattr(capture_run, "running_engine", lambda *_: nullcontext(Reference(verifier, layer_ids)))
        for mode in ("online", "offline"):
            settings = CaptureSettings.model_validate(in_mode(mode))
            capture_run.capture(settings, verifier, folder / "train.jsonl", folder / mode)
    return folder


def losses(place: Path, name: str) -> list[float]:
    return [row["loss"] for row in read_jsonl(place / name / "state/metrics.jsonl") if "loss" in row]


def test_a_live_training_killed_in_its_midst_ends_bit_equal_and_as_one_on_stored_states(place: Path) -> None:
    run(place, *words("straight", "online"))
    process = subprocess.Popen([sys.executable, "-m", *words("killed", "online")], cwd=place, env=ENVIRONMENT)
    metrics, limit = place / "killed/state/metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and len(read_jsonl(metrics)) >= 3) and time.monotonic() < limit:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    killed_at = len(read_jsonl(metrics))
    told = run(place, *words("killed", "online"))
    rows = [without_clock(read_jsonl(place / name / "state/metrics.jsonl")) for name in ("straight", "killed")]
    assert "resumed after step" in told and 3 <= killed_at < len(rows[0])
    assert rows[0] == rows[1]
    for file in ("model.safetensors", "config.json"):
        assert (place / "straight/draft" / file).read_bytes() == (place / "killed/draft" / file).read_bytes()
    assert not list(place.rglob("state/spool/*")), "nothing is kept"
    run(place, *words("stored", "offline"))
    assert losses(place, "straight") == pytest.approx(losses(place, "stored"), rel=1e-3)
