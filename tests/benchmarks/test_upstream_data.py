"""Both sides of the comparison with upstream read the same rows."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from algorithms.vocabulary import from_offsets
from benchmarks.upstream_data import PACK_TOKENS, choose_rows, write_rows
from harness.capture.store import Document, Store, shard_record, write_manifest, write_shard
from harness.errors import UserError
from harness.sections.training import Training
from harness.training.packing import epoch_packs, split_rows

WIDTH, VOCABULARY, END = 4, 50, 2
TRAINING = Training(seed=1, epochs=2, tokens_per_step=1024, learning_rate=1e-3, validation_share=0.2)
MANIFEST = {
    "aux_layers": [1, 2], "last_layer": 3, "hidden_size": WIDTH, "vocab_size": VOCABULARY, "dtype": "bfloat16",
    "verifier": {}, "rows": 0, "tokens": 0, "supervised_tokens": 0, "dropped": 0, "cut_at_limit": 0, "seconds": 1.0,
    "tokens_per_s": 1.0, "provenance": {},
}  # fmt: skip


def document(number: int, length: int) -> Document:
    states = torch.rand(length, 3, WIDTH, dtype=torch.bfloat16) + 0.5
    tokens = torch.randint(3, VOCABULARY, (length,))
    return Document(f"row-{number}", tokens, states, torch.arange(length) >= length // 2, END)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capture")
    facts = {"state_shape": [3, WIDTH], "dtype": "bfloat16"}
    shard = write_shard(folder, 0, [document(number, 100 + 13 * number) for number in range(30)], facts)
    write_manifest(folder, MANIFEST | {"shards": [shard_record(shard)]})
    return folder


@pytest.fixture(scope="module")
def rows(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rows")
    write_rows(Store(capture), TRAINING, steps=8, vocabularies=[20], ends=[END], out=out)
    return out


def training_documents(rows: Path) -> list[Document]:
    store = Store(rows / "ours")
    trained, _ = split_rows(len(store), TRAINING.validation_share, TRAINING.seed)
    return [store[row] for row in trained]


def test_upstream_trains_on_the_rows_that_our_trainer_trains_on(rows: Path):
    from speculators.train.data import ArrowDataset

    share = json.loads((rows / "data.json").read_text())["training_share"]
    theirs = ArrowDataset(PACK_TOKENS, rows / "upstream", on_missing="raise", train_ratio=share)
    ours = training_documents(rows)
    assert len(theirs) == len(ours)
    for sample, mine in zip((theirs[index] for index in range(len(theirs))), ours, strict=True):
        assert torch.equal(sample["input_ids"], mine.token_ids)
        assert torch.equal(sample["loss_mask"].bool(), mine.loss_mask)
        assert torch.equal(sample["hidden_states"], mine.states[:, :-1].flatten(1))
        assert torch.equal(sample["verifier_last_hidden_states"], mine.states[:, -1])


def test_both_make_the_steps_that_were_asked_for(rows: Path):
    lengths = [len(each.token_ids) for each in training_documents(rows)]
    facts = json.loads((rows / "data.json").read_text())
    assert facts["tokens"] == sum(lengths)
    tokens_per_step = round(facts["tokens"] * TRAINING.epochs / 8)
    assert tokens_per_step <= PACK_TOKENS
    for epoch in range(TRAINING.epochs):
        assert len(epoch_packs(range(len(lengths)), lengths, tokens_per_step, 1, epoch)) == 8 // TRAINING.epochs


def test_more_steps_than_the_rows_give_are_refused():
    with pytest.raises(UserError, match=r"--steps = 99: 2 passes over all rows are \d+\. Fix: "):
        choose_rows([500] * 20, TRAINING, 99)


def test_upstream_gets_our_draft_vocabulary_with_the_end_of_a_turn(rows: Path):
    kept_D = from_offsets(torch.from_numpy(np.load(rows / "upstream" / "d2t-20.npy")))
    mask = np.load(rows / "upstream" / "t2d-20.npy")
    assert kept_D.tolist() == mask.nonzero()[0].tolist()
    assert len(kept_D) == 20 and END in kept_D.tolist() and len(mask) == VOCABULARY
    counts = Store(rows / "ours").token_counts()
    left_out = counts[~torch.from_numpy(mask)]
    assert counts[kept_D[kept_D != END]].min() >= left_out.max()


def test_files_of_upstream_have_the_names_that_its_loader_asks_for(rows: Path):
    first = load_file(rows / "upstream" / "hidden_states" / "hs_0.safetensors")
    assert set(first) == {"hidden_states", "token_ids"}
