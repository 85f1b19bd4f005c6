"""The reference trainer's DFlash2 loads our checkpoints and computes the same loss, and we load its."""

from typing import Any

import pytest
import torch

from tests import toy
from tests.interop import upstream

pytestmark = pytest.mark.slow

BASE = {"mask_token_id": upstream.MASK_TOKEN_ID, "block_size": 4, "draft_vocab_size": toy.VOCABULARY,
        "selector_rank": 8, "selector_top_k": 6}  # fmt: skip
# Windows there do not move with the row, so those here are wider than the document.
CASES: dict[str, dict[str, Any]] = {
    "bidirectional": {},
    "two_layers_three_taps": {"layers": 2, "conv_kernel_size": 3, "conv_group_size": 64},
    "window_causal": {"sliding_window": 64, "causal": True},
    "selector_counts_half": {"selector_weight": 0.5, "loss": "ce", "decay_gamma": 2.0},
}


@torch.no_grad()
def speak_up(draft: Any) -> None:
    """Make the selector's scores as large as the logits."""
    draft.candidate_selector.predecessor_codebook.mul_(8.0)
    draft.candidate_selector.successor_codebook.mul_(8.0)


@pytest.fixture(params=CASES)
def pair(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return upstream.make_pair(tmp_path, "dflash2", BASE | CASES[request.param], prepare=speak_up)


@torch.no_grad()
def test_upstream_computes_our_blocks_and_our_loss(pair):
    upstream.check_blocks_and_loss(
        pair,
        tv_loss_fn=upstream.losses("tv")["tv"][0],
        gamma=pair.settings.get("decay_gamma", 4.0),
        selector_loss_alpha=pair.settings.get("selector_weight", 1.0),
    )


def test_a_checkpoint_that_upstream_writes_is_read_and_drafts_the_same(pair, tmp_path):
    upstream.check_read_back(pair, tmp_path / "theirs")
