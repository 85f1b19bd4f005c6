"""The reference trainer's DSpark loads our checkpoints and computes the same loss, and we load its."""

from typing import Any

import pytest
import torch

from tests import toy
from tests.interop import upstream

pytestmark = pytest.mark.slow

# Windows there do not move with the row, so those here are wider than the document.
CASES: dict[str, dict[str, Any]] = {
    "anchor_drafts": {"block_size": 3},
    "anchor_does_not": {"block_size": 4, "sample_from_anchor": False, "layers": 2},
    "window_causal": {"block_size": 3, "sliding_window": 64, "confidence_head_with_markov": False},
    "window_bidirectional": {"block_size": 3, "sliding_window": 64, "causal": False},
    "full_vocabulary": {"block_size": 3, "draft_vocab_size": toy.VOCABULARY, "confidence_head": False},
    # Upstream takes these weights from the loss itself.
    "dpace": {"block_size": 3, "position_weights": "dpace", "loss": "ce", "markov_rank": 6},
}


@pytest.fixture(params=CASES)
def pair(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return upstream.make_pair(tmp_path, "dspark", {"mask_token_id": upstream.MASK_TOKEN_ID} | CASES[request.param])


@torch.no_grad()
def test_upstream_computes_our_loss(pair):
    upstream.check_block_loss(
        pair,
        upstream.block_pack(score_last=pair.ours.shape.sample_from_anchor),
        tv_loss_fn=upstream.losses("tv")["tv"][0],
        per_position_loss_weight=upstream.position_weights(pair.settings),
    )


def test_a_checkpoint_that_upstream_writes_is_read_and_drafts_the_same(pair, tmp_path):
    upstream.check_read_back(pair, tmp_path / "theirs")
