"""Settings and prompts of a small capture of the toy verifier."""

from pathlib import Path
from typing import Any

from harness.capture.settings import CaptureSettings
from harness.files import write_jsonl
from harness.sections.data import Reply
from harness.sections.training import Capture
from tests.harness.capture.reference import AUX_LAYERS

TEXTS = ["a", "count to ten", "why", "x y z", "tell me more", "what?", "no", "yes and no"]


def settings(**changes: Any) -> CaptureSettings:
    content = {
        "capture": Capture(aux_layers=AUX_LAYERS, shard_rows=3, max_num_seqs=4),
        "reply": Reply(max_new_tokens=6),
        "min_supervised_tokens": 1,
        "max_model_len": 64,
        "dtype": "float32",
        "scale": "smoke",
    }
    return CaptureSettings(**(content | changes))


def write_prompts(path: Path, texts: list[str] = TEXTS) -> Path:
    rows = [
        {"id": f"row-{i}", "source": "toy", "messages": [{"role": "user", "content": t}]} for i, t in enumerate(texts)
    ]
    write_jsonl(path, rows)
    return path
