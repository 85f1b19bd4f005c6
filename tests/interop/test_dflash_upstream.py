"""The reference trainer's DFlash loads our checkpoints and computes the same loss, and we load its."""

from typing import Any

import pytest
import torch

from tests import toy
from tests.interop import upstream

pytestmark = pytest.mark.slow

BASE = {"mask_token_id": upstream.MASK_TOKEN_ID, "block_size": 4}
# Windows there do not move with the row, so those here are wider than the document; full layers there are never causal.
CASES: dict[str, dict[str, Any]] = {
    "bidirectional": {},
    "two_layers_full_vocabulary": {"layers": 2, "draft_vocab_size": toy.VOCABULARY, "decay_gamma": 2.0},
    "window_causal": {"sliding_window": 64, "causal": True, "loss": "ce"},
    "window_dpace": {"sliding_window": 64, "position_weights": "dpace", "loss": "ce", "train_head": True},
}


@pytest.fixture(params=CASES)
def pair(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return upstream.make_pair(tmp_path, "dflash", BASE | CASES[request.param])


@torch.no_grad()
def test_upstream_computes_our_blocks_and_our_loss(pair):
    weights = upstream.position_weights(pair.settings)
    gamma = pair.settings.get("decay_gamma", 4.0)
    upstream.check_blocks_and_loss(pair, gamma=gamma, per_position_loss_weight=weights)


def test_a_checkpoint_that_upstream_writes_is_read_and_drafts_the_same(pair, tmp_path):
    upstream.check_read_back(pair, tmp_path / "theirs")
