"""A toy training: made-up replies and states of a toy verifier, and the command that trains on them."""

import json
import subprocess
import sys
from pathlib import Path

import torch

from harness.capture.store import Document, Store, shard_record, write_manifest, write_shard
from harness.verifiers.identity import verifier_identity
from tests import toy

AUX = [1, 3, 5]
TRAINING = {
    "seed": 3, "epochs": 2, "tokens_per_step": 64, "learning_rate": 2e-3, "optimizer": "adamw", "validation_share": 0.2,
    "checkpoint_minutes": 1e-6, "compute_dtype": "float32",
}  # fmt: skip
SETTINGS = {"training": TRAINING, "algorithm": {"speculative_tokens": 3, "draft_vocab_size": 64}, "scale": "smoke"}

ENVIRONMENT = {"PYTHONPATH": str(Path.cwd()), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "CI": "1"}


def make_store(
    folder: Path, verifier: Path | None = None, lengths=(20, 31, 12, 25, 18, 40, 22, 9, 27, 16), width: int = 64
) -> Store:
    """Made-up replies and states, said to be those of `verifier`."""
    generator = torch.Generator().manual_seed(11)
    documents = []
    for index, length in enumerate(lengths):
        states = torch.randn(length, len(AUX) + 1, width, generator=generator).bfloat16()
        tokens = torch.randint(0, 250, (length,), generator=generator)
        documents.append(Document(f"row-{index}", tokens, states, torch.arange(length) >= 5, toy.TURN_END_ID))
    write_shard(folder, 0, documents, {"state_shape": [len(AUX) + 1, width], "dtype": "bfloat16"})
    record = shard_record(folder / "shard_00000.safetensors")
    facts = {
        "aux_layers": AUX, "last_layer": 6, "hidden_size": width, "vocab_size": toy.VOCABULARY, "dtype": "bfloat16",
        "verifier": verifier_identity(verifier) if verifier else {"id": "toy", "sha256": ""},
        "shards": [record], "rows": len(lengths), "tokens": sum(lengths),
        "supervised_tokens": 0, "dropped": {}, "cut_at_limit": 0, "seconds": 1.0, "tokens_per_s": 1.0, "provenance": {},
    }  # fmt: skip
    write_manifest(folder, facts)
    return Store(folder)


def without_clock(rows: list[dict]) -> list[dict]:
    """Rows of a result without what a clock, a meter or the moment of the run says."""
    clocked = {"tokens_per_s", "seconds", "peak_memory_bytes", "provenance"}
    return [{key: value for key, value in row.items() if key not in clocked} for row in rows]


def command(name: str, settings_=None, algorithm: str = "eagle3") -> list[str]:
    """Train in a folder that holds verifier/ and capture/; draft and state go to `name`."""
    text = json.dumps(settings_ or SETTINGS)
    return [
        sys.executable, "-m", "harness.training", "--settings", text, "--algorithm", algorithm, "--verifier",
        "verifier", "--capture", "capture", "--out", f"{name}/draft", "--state", f"{name}/state",
    ]  # fmt: skip


def run(place: Path, name: str, settings_=None, **options) -> subprocess.CompletedProcess:
    """The command in `place`, to its end."""
    return subprocess.run(
        command(name, settings_),
        cwd=place,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )
