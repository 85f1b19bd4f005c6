"""The benchmark for GPUs at toy size on the CPU: every algorithm trains, and the figures hang together."""

import subprocess
import sys

import pytest
import torch

import algorithms
from algorithms.work import Pack
from benchmarks.training_gpu import Setting, measure, random_batch
from harness.sections.plan import VerifierSize
from harness.sections.training import Training

SIZE = VerifierSize(
    layers=6, hidden_size=32, intermediate_size=48, attention_heads=4, kv_heads=2, head_dim=8, vocab_size=200,
    parameters=1e5, weight_bytes=2e5,
)  # fmt: skip
SETTING = Setting(
    SIZE, [1, 2, 4], Pack(90.0, 40.0, 25.0), Training(seed=1, epochs=1, tokens_per_step=90, learning_rate=1e-3)
)
CPU = torch.device("cpu")


def test_a_pack_is_full_and_its_documents_are_unequal_and_end_with_replies():
    batch = random_batch(SETTING, CPU, draw=3)
    assert len(batch.token_ids_S) == 90 and (batch.document_S.diff() >= 0).all()
    lengths = torch.bincount(batch.document_S)
    assert len(set(lengths.tolist())) > 1
    last = lengths.cumsum(0) - 1
    assert batch.loss_mask_S[last].all() and not batch.loss_mask_S[0]


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_every_algorithm_trains(name: str):
    kind = algorithms.load(name)
    fields = kind.Config.model_fields
    knobs = {"speculative_tokens": 3, "mask_token_id": 199, "block_size": 3 if "sample_from_anchor" in fields else 4}
    found = measure(name, kind.Config(**{k: v for k, v in knobs.items() if k in fields}), SETTING, CPU, steps=2)
    assert found["tokens_per_s"] == pytest.approx(90 / found["seconds_per_step"])
    assert found["last_loss"] == found["last_loss"] and found["flop_per_s"] > 0


def test_without_a_gpu_it_says_so_in_one_line():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.training_gpu"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "--device = cuda" in done.stderr
