"""The reading side of the store's benchmark, on a made-up store; how fast it is, is not judged here."""

import torch

from benchmarks.store_read import in_eight_bits, packs_of, read_together, read_tokens_per_s
from tests.harness.training.toy_training import make_store


def test_the_copy_in_8_bits_holds_the_same_documents_and_says_its_error(tmp_path):
    store = make_store(tmp_path / "capture")
    small = in_eight_bits(store.folder, tmp_path / "small")
    assert len(small) == len(store) and len(small.manifest["store_error"]) == 4
    for i in range(len(store)):
        ours, theirs = small[i], store[i]
        assert (ours.id, ours.last_token) == (theirs.id, theirs.last_token)
        assert torch.equal(ours.token_ids, theirs.token_ids) and torch.equal(ours.loss_mask, theirs.loss_mask)
        assert 0 < (ours.states.float() - theirs.states.float()).norm() / theirs.states.float().norm() < 0.02


def test_every_row_is_read_once_alone_and_by_two_processes_at_once(tmp_path):
    store = make_store(tmp_path / "capture")
    packs = packs_of(store, 64)
    assert sorted(row for pack in packs for row in pack) == list(range(len(store)))
    assert read_tokens_per_s(store.folder, packs) > 0
    assert read_together(store.folder, packs, readers=2) > 0
