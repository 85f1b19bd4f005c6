"""What trades time for memory leaves the result as it is."""

from functools import partialmethod

import pytest
import torch
from torch import nn

import algorithms
from algorithms import speed
from algorithms.attention import Keys, Layout, attend, attend_blocks, blocks_see, visible
from tests.algorithms.small import SETTINGS, assert_near, make_config, make_draft, pack, verifier_weights

HEADS, GROUPS, SIZE = 4, 2, 8


def step(algorithm, again, dtype):
    """(loss, gradients, bytes that the forward pass kept for the backward pass)."""
    settings = SETTINGS.get(algorithm, {}) | {"layers": 2}
    draft = make_draft(algorithm, **settings)
    objective = algorithms.load(algorithm).objective(make_config(algorithm, **settings), verifier_weights(), draft)
    if again:
        speed.recompute(draft)
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    reduced = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), reduced:
        loss = objective(pack([19, 23], [3, 5])).loss
    weights = {parameter.untyped_storage().data_ptr() for parameter in draft.parameters()}
    loss.backward()
    gradients = [p.grad for p in draft.parameters() if p.grad is not None]
    return loss.detach(), gradients, sum(size for place, size in kept.items() if place not in weights)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("algorithm", algorithms.NAMES)
def test_computing_activations_again_gives_the_same_gradients_and_keeps_less(algorithm, dtype):
    (loss, gradients, kept), (loss_2, gradients_2, kept_2) = (step(algorithm, again, dtype) for again in (False, True))
    assert torch.equal(loss, loss_2)
    assert all(torch.equal(a, b) for a, b in zip(gradients, gradients_2, strict=True))
    assert kept_2 < 0.7 * kept


@pytest.mark.parametrize("algorithm", ["eagle3", "dflash"])
def test_compiled_parts_compute_the_same_for_any_number_of_rows(algorithm, monkeypatch):
    settings = SETTINGS.get(algorithm, {})
    draft = make_draft(algorithm, **settings)
    objective = algorithms.load(algorithm).objective(make_config(algorithm, **settings), verifier_weights(), draft)
    batches = [pack(lengths, [3] * len(lengths)) for lengths in ([19, 23], [30, 8, 11])]
    want = [objective(batch).loss for batch in batches]
    # Traced as for a GPU, without the minutes that its kernels would take here; flex attention has no CPU backward.
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))
    speed.compile_parts(draft)
    draft.flex = False
    for batch, loss in zip(batches, want, strict=True):
        found = objective(batch).loss
        found.backward()
        assert_near(found.detach(), loss.detach())


@pytest.mark.slow  # its module is slow to import
@pytest.mark.parametrize("window", [None, 3])
def test_flex_attention_over_branches_equals_the_dense_mask(window):
    generator = torch.Generator().manual_seed(4)
    random = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    document_S = torch.tensor([0] * 7 + [1] * 5 + [2] * 9)
    context, rows_R = Layout.of(document_S), torch.tensor([2, 3, 6, 9, 12, 20])
    queries, keys = context.take(rows_R), Keys.of(context, *random(2, len(document_S), GROUPS, SIZE))
    for branch_step in range(5):
        query_RND = random(len(rows_R), HEADS, SIZE)
        dense, flex = (
            attend(query_RND, keys, queries, visible(context, queries, branch_step, window, flex), window)
            for flex in (False, True)
        )
        assert_near(flex, dense)
        keys.branch.append(tuple(random(2, len(rows_R), GROUPS, SIZE)))


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 3])
def test_flex_attention_over_blocks_equals_the_dense_mask(causal, window):
    generator = torch.Generator().manual_seed(4)
    random = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    document_S = torch.tensor([0] * 7 + [1] * 5 + [2] * 9)
    context, anchor_R, size = Layout.of(document_S), torch.tensor([0, 3, 6, 9, 12, 20]), 4
    anchors, keys = context.tile(anchor_R, 2), Keys.of(context, *random(2, len(document_S), GROUPS, SIZE))
    first = 1 if causal else 0
    query_RTND = random(len(anchor_R), size - first, HEADS, SIZE)
    own = tuple(random(2, len(anchor_R), size, GROUPS, SIZE))
    dense, flex = (
        attend_blocks(query_RTND, keys, own, anchors, blocks_see(context, anchors, size, causal, window, flex, first))
        for flex in (False, True)
    )
    assert_near(flex, dense)
