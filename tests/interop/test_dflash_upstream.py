"""The reference trainer (speculators 0.9.0) loads our DFlash checkpoints and computes the same loss, and we load its.

An oracle only: the product does not use it. Its blocks may stand in any document of the pack and are scored by the mask
of each position alone, so the pack here ends in a document without a reply, where no block stands.
"""

import dataclasses
from typing import Any

import pytest
import torch

import algorithms
from algorithms.contract import Batch
from algorithms.dflash.training import Anchored, block_states
from harness.verifiers.weights import load_weights
from tests import toy

pytestmark = pytest.mark.slow

DFLASH = algorithms.load("dflash")
REPLY_AT, LENGTH, REST = 7, 24, 10
BASE = {"mask_token_id": 300, "block_size": 4}
# Windows there do not move with the row, so those here are wider than the document; full layers there are never causal.
CASES: dict[str, dict[str, Any]] = {
    "bidirectional": {},
    "two_layers_full_vocabulary": {"layers": 2, "draft_vocab_size": toy.VOCABULARY, "decay_gamma": 2.0},
    "window_causal": {"sliding_window": 64, "causal": True, "loss": "ce"},
    "window_dpace": {"sliding_window": 64, "position_weights": "dpace", "loss": "ce", "train_head": True},
}


def load_upstream(folder):
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig

    config = DFlashSpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = DFlashDraftModel.from_pretrained(folder, config=config)
    model.load_verifier_weights()
    return model.float().eval()


@pytest.fixture(params=CASES)
def pair(request, tmp_path, monkeypatch):
    """(settings, our draft, upstream's model of its checkpoint, verifier)."""
    monkeypatch.chdir(tmp_path)
    verifier = load_weights(toy.write_verifier(tmp_path / "verifier"))
    settings = BASE | CASES[request.param]
    draft = toy.random_draft(verifier, algorithm="dflash", **settings)
    return settings, draft, load_upstream(toy.write_draft(tmp_path / "draft", draft, "verifier", "dflash")), verifier


def pack() -> tuple[Batch, Batch]:
    """(ours, theirs): theirs scores a position by the mask of the predicted token, ours by that of the one before."""
    generator = torch.Generator().manual_seed(2)
    total = LENGTH + REST
    tokens = torch.randint(0, 256, (total,), generator=generator)
    states, last = torch.randn(total, 3, 64, generator=generator), torch.randn(total, 64, generator=generator)
    place = torch.arange(total)
    mask, document = (place >= REPLY_AT) & (place < LENGTH), (place >= LENGTH).long()
    theirs = Batch(tokens, states, last, mask, document)
    return dataclasses.replace(theirs, loss_mask_S=mask & (place < LENGTH - 1)), theirs


@torch.no_grad()
def test_upstream_computes_our_blocks_and_our_loss(pair):
    from speculators.losses.utils import resolve_loss_config

    settings, draft, upstream, verifier = pair
    ours, theirs = pack()
    seen: dict[str, torch.Tensor] = {}
    upstream.norm.register_forward_hook(lambda *called: seen.update(states=called[-1]))
    _, loss, _ = upstream(
        hidden_states=theirs.aux_states_SAH.flatten(1)[None],
        input_ids=theirs.token_ids_S[None],
        loss_mask=theirs.loss_mask_S[None],
        verifier_last_hidden_states=theirs.last_state_SH[None],
        document_ids=theirs.document_S[None],
        loss_config=resolve_loss_config(settings.get("loss", "kl_div"), "eager"),
        gamma=settings.get("decay_gamma", 4.0),
        per_position_loss_weight={"dpace": "dpace"}.get(settings.get("position_weights", ""), "fixed-exp-decay"),
        max_anchors=40,
    )
    config = DFLASH.Config(**{"speculative_tokens": 3} | settings)
    found = DFLASH.objective(config, verifier, draft)(ours)
    assert float(found.loss) == pytest.approx(float(loss), rel=1e-4)
    states = block_states(draft, ours, Anchored.of(theirs, 3, 40).anchor_R, 4)
    theirs_RTH = seen["states"].reshape(-1, 4, 64)[: len(states)]
    assert float((states - theirs_RTH).norm() / states.norm()) < 1e-5


def test_a_checkpoint_that_upstream_writes_is_read_and_drafts_the_same(pair, tmp_path):
    from harness.checkpoint.lint import checkpoint_faults
    from harness.checkpoint.reading import open_checkpoint

    _, draft, upstream, verifier = pair
    upstream.save_pretrained(tmp_path / "theirs")
    content, tensors = open_checkpoint(tmp_path / "theirs")
    assert {fault.rule for fault in checkpoint_faults(content, tensors)} == {"remote-code"}
    again = DFLASH.restore(content, tensors, verifier)
    tokens, states = torch.arange(9), torch.randn(8, 3, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(*(DFLASH.propose(each, tokens, states, 3) for each in (draft, again)))
