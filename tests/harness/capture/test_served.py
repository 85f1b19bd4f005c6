"""vLLM's own server in the engine's place: the same replies and states (float32, toy verifier)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness.capture.engine import EngineSize
from harness.capture.served import ServedEngine
from harness.capture.store import Store
from harness.errors import UserError
from harness.sections.training import Capture
from tests.harness.capture.made import settings, write_prompts
from tests.harness.capture.reference import AUX_LAYERS, LAYER_IDS, Reference

SERVER = Capture(aux_layers=AUX_LAYERS, shard_rows=3, max_num_seqs=4, preflight_rows=2, engine="server")


def test_a_window_as_long_as_the_verifier_reads_is_refused(verifier: Path, tmp_path: Path) -> None:
    given = settings(capture=SERVER, max_model_len=512)
    with pytest.raises(UserError, match=r"max_model_len = 512: .*2 positions more, but .* reads 512. Fix: use 510, or"):
        ServedEngine(verifier, given, EngineSize(10, 20, 4), 1 << 20, LAYER_IDS, tmp_path)


@pytest.mark.slow
def test_a_server_gives_the_replies_and_states_that_transformers_gives(
    tmp_path: Path, verifier: Path, reference: Reference
) -> None:
    given = settings(capture=SERVER, max_model_len=128)
    prompts, out = write_prompts(tmp_path / "train.jsonl"), tmp_path / "capture"
    command = [
        sys.executable, "-m", "harness.capture", "--settings", given.model_dump_json(), "--verifier", str(verifier),
        "--prompts", str(prompts), "--out", str(out),
    ]  # fmt: skip
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    store = Store(out)
    assert len(store) == 8 and not (out / "files").exists()
    for i in range(8):
        states, logits = reference.states(store[i].token_ids.tolist(), LAYER_IDS)
        assert torch.allclose(store[i].states, states, rtol=1e-3, atol=1e-4)
        reply = [*store[i].token_ids[store[i].loss_mask].tolist(), store[i].last_token]
        assert logits[-len(reply) :].argmax(-1).tolist() == reply
    assert json.loads((out / "manifest.json").read_text())["preflight"]["argmax_differs"] == 0
