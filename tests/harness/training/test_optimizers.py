"""Which optimiser moves which parameter."""

import torch
from torch import nn

from algorithms.tables import mark_table
from harness.sections.training import Training
from harness.training.optimizers import make_optimizers


def test_muon_moves_matrices_and_leaves_tables_of_tokens_to_adamw():
    draft = nn.Module()
    draft.matrix, draft.norm = nn.Linear(4, 3, bias=False), nn.Parameter(torch.ones(4))
    draft.table = mark_table(nn.Parameter(torch.ones(9, 2)))
    draft.frozen = nn.Parameter(torch.ones(9, 2), requires_grad=False)
    training = Training(seed=0, epochs=1, tokens_per_step=64, learning_rate=1e-3, optimizer="muon", weight_decay=0.1)
    muon, adamw = make_optimizers(draft, training)
    moved = [[p for group in optimizer.param_groups for p in group["params"]] for optimizer in (muon, adamw)]
    assert [id(p) for p in moved[0]] == [id(draft.matrix.weight)]
    assert {id(p) for p in moved[1]} == {id(draft.norm), id(draft.table)}
    draft.table[3].sum().backward()
    adamw.step()
    assert (draft.table.detach()[3] != 1).all() and (draft.table.detach()[:3] == 1).all(), "untouched rows stay"
