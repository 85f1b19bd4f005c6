"""What training keeps from the forward pass for the backward pass: nothing of the vocabulary's size."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import algorithms
from tests.algorithms.small import AUX, MASK, WIDTH, VerifierWeights, pack, verifier_weights

SMALL, LARGE = 500, 2000


def wide_verifier(vocabulary: int) -> VerifierWeights:
    """One with so many tokens; the first rows of the tables are those of a smaller one."""
    small = verifier_weights()
    tables = [
        torch.cat([table, torch.randn(vocabulary - len(table), WIDTH, generator=torch.Generator().manual_seed(number))])
        for number, table in enumerate((small.embedding_VH, small.head_VH))
    ]
    return VerifierWeights(small.config | {"vocab_size": vocabulary}, *tables, small.final_norm_H)


def draft_and_loss(name: str, vocabulary: int, **settings: object) -> tuple[nn.Module, Callable]:
    torch.manual_seed(0)
    kind, verifier = algorithms.load(name), wide_verifier(vocabulary)
    mask = {"mask_token_id": MASK} if "mask_token_id" in kind.Config.model_fields else {}
    config = kind.Config(**{"speculative_tokens": 3} | mask | settings)
    draft = kind.build(config, verifier, torch.arange(vocabulary), AUX)
    return draft, kind.objective(config, verifier, draft)


def kept(draft: nn.Module, loss: Callable) -> list[Tensor]:
    """What autograd keeps of one step, without parameters, buffers and the gradients of trained parameters."""
    owned = {tensor.untyped_storage().data_ptr() for tensor in (*draft.parameters(), *draft.buffers())}
    gradients = {parameter.shape for parameter in draft.parameters() if parameter.requires_grad}
    found: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in owned and tensor.shape not in gradients:
            found[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss(pack([30, 41], [5, 9])).loss.backward()
    return list(found.values())


def block(name: str) -> dict[str, int]:
    fields = algorithms.config_class(name).model_fields
    return {"block_size": 3 if "sample_from_anchor" in fields else 4} if "block_size" in fields else {}


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_nothing_as_wide_as_the_vocabulary_waits_for_the_backward_pass(name: str):
    tensors = kept(*draft_and_loss(name, LARGE, **block(name)))
    assert tensors and not [tuple(t.shape) for t in tensors if t.dim() > 1 and t.numel() % LARGE == 0]


@pytest.mark.parametrize("train_head", [False, True])
@pytest.mark.parametrize("name", algorithms.NAMES)
def test_four_times_the_vocabulary_keeps_as_many_bytes(name: str, train_head: bool):
    small, large = (
        sum(t.nbytes for t in kept(*draft_and_loss(name, vocabulary, train_head=train_head, **block(name))))
        for vocabulary in (SMALL, LARGE)
    )
    assert small == large
