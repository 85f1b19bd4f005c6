"""The reference trainer (speculators 0.9.0) loads our DSpark checkpoints and computes the same loss, and we load its.

An oracle only: the product does not use it. Its blocks may stand in any document of the pack and are scored by the mask
of each position alone, so the pack here ends in a document without a reply, where no block stands.
"""

from typing import Any

import pytest
import torch

import algorithms
from algorithms.contract import Batch
from harness.verifiers.weights import load_weights
from tests import toy

pytestmark = pytest.mark.slow

DSPARK = algorithms.load("dspark")
REPLY_AT, LENGTH, REST = 7, 24, 10
MASK = 300
# Windows there do not move with the row, so those here are wider than the document.
CASES: dict[str, dict[str, Any]] = {
    "anchor_drafts": {"block_size": 3},
    "anchor_does_not": {"block_size": 4, "sample_from_anchor": False, "layers": 2},
    "window_causal": {"block_size": 3, "sliding_window": 64, "confidence_head_with_markov": False},
    "window_bidirectional": {"block_size": 3, "sliding_window": 64, "causal": False},
    "full_vocabulary": {"block_size": 3, "draft_vocab_size": toy.VOCABULARY, "confidence_head": False},
    "dpace": {"block_size": 3, "position_weights": "dpace", "markov_rank": 6},
}


def load_upstream(folder):
    from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig

    config = DSparkSpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = DSparkDraftModel.from_pretrained(folder, config=config)
    model.load_verifier_weights()
    return model.float().eval()


@pytest.fixture(params=CASES)
def pair(request, tmp_path, monkeypatch):
    """(settings, our draft, upstream's model of its checkpoint, verifier)."""
    monkeypatch.chdir(tmp_path)
    verifier = load_weights(toy.write_verifier(tmp_path / "verifier"))
    settings = {"mask_token_id": MASK} | CASES[request.param]
    draft = toy.random_draft(verifier, algorithm="dspark", **settings)
    folder = toy.write_draft(tmp_path / "draft", draft, "verifier", "dspark")
    return settings, draft, load_upstream(folder), verifier


def pack(anchor_drafts: bool) -> tuple[Batch, Batch]:
    """(ours, theirs). Theirs does not score the reply's last position where the anchor's row does not draft."""
    generator = torch.Generator().manual_seed(2)
    total = LENGTH + REST
    tokens = torch.randint(0, 256, (total,), generator=generator)
    states, last = torch.randn(total, 3, 64, generator=generator), torch.randn(total, 64, generator=generator)
    place = torch.arange(total)
    mask, document = (place >= REPLY_AT) & (place < LENGTH), (place >= LENGTH).long()
    theirs = Batch(tokens, states, last, mask, document)
    return Batch(tokens, states, last, mask & (anchor_drafts | (place < LENGTH - 1)), document), theirs


@torch.no_grad()
def test_upstream_computes_our_loss(pair):
    from speculators.losses.utils import resolve_loss_config

    settings, draft, upstream, verifier = pair
    ours, theirs = pack(draft.shape.sample_from_anchor)
    if settings.get("position_weights") == "dpace":
        settings |= {"loss": "ce"}  # it takes its weights from the loss itself
    _, loss, _ = upstream(
        hidden_states=theirs.aux_states_SAH.flatten(1)[None],
        input_ids=theirs.token_ids_S[None],
        loss_mask=theirs.loss_mask_S[None],
        verifier_last_hidden_states=theirs.last_state_SH[None],
        document_ids=theirs.document_S[None],
        loss_config=resolve_loss_config(settings.get("loss", "kl_div"), "eager"),
        tv_loss_fn=resolve_loss_config("tv", "eager")["tv"][0],
        max_anchors=40,
        per_position_loss_weight={"dpace": "dpace"}.get(settings.get("position_weights", ""), "fixed-exp-decay"),
    )
    config = DSPARK.Config(**{"speculative_tokens": 3} | settings)
    found = DSPARK.objective(config, verifier, draft)(ours)
    assert float(found.loss) == pytest.approx(float(loss), rel=1e-4)


def test_a_checkpoint_that_upstream_writes_is_read_and_drafts_the_same(pair, tmp_path):
    from harness.checkpoint.lint import checkpoint_faults
    from harness.checkpoint.reading import open_checkpoint

    _, draft, upstream, verifier = pair
    upstream.save_pretrained(tmp_path / "theirs")
    content, tensors = open_checkpoint(tmp_path / "theirs")
    assert {fault.rule for fault in checkpoint_faults(content, tensors)} == {"remote-code"}
    again = DSPARK.restore(content, tensors, verifier)
    tokens, states = torch.arange(9), torch.randn(8, 3, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(*(DSPARK.propose(each, tokens, states, 3) for each in (draft, again)))
