"""Reading ahead for a GPU: what is read when, and that every tensor of a batch goes along."""

import torch

from algorithms.contract import Batch, Pack
from harness.training import batches
from harness.training.batches import Batches, _mapped


def batch() -> Batch:
    ones = torch.ones(2)
    return Batch(ones, ones, ones, ones, ones, 7, Pack(ones, ones, ones, counts=False))


def test_every_tensor_of_a_batch_is_moved_and_the_rest_is_kept():
    moved = _mapped(batch(), lambda tensor: tensor + 1)
    assert moved.draw == 7 and moved.pack.counts is False
    tensors = [
        value for part in (moved, moved.pack) for value in vars(part).values() if isinstance(value, torch.Tensor)
    ]
    assert len(tensors) == 8 and all(tensor.tolist() == [2, 2] for tensor in tensors)


def test_the_next_batch_is_read_ahead_but_not_over_the_end_of_an_epoch(monkeypatch):
    monkeypatch.setattr(batches, "_mapped", lambda content, change: content)
    read: list[int] = []
    ahead = Batches(lambda step: read.append(step) or step, [0, 0, 1], torch.device("cuda"))
    assert ahead[0] == 0 and ahead[1] == 1
    assert read == [0, 1], "the validation reads before the next epoch does"
    assert ahead[2] == 2 and read == [0, 1, 2]


def test_on_a_cpu_a_batch_is_read_when_it_is_asked_for():
    read: list[int] = []
    straight = Batches(lambda step: read.append(step) or step, [0, 0], torch.device("cpu"))
    assert straight[1] == 1 and read == [1]
