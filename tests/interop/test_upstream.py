"""The reference trainer (speculators 0.9.0) loads our checkpoints and computes the same drafts and the same loss.

An oracle only: the product does not use it. Its model reads the sequence shifted by one: token t+1 beside state t.
"""

from typing import Any

import pytest
import torch

import algorithms
from algorithms.contract import Batch
from algorithms.eagle3.drafting import propose
from harness.verifiers.weights import load_weights
from tests import toy

pytestmark = pytest.mark.slow

LENGTH, STEPS = 24, 3
# Its windows do not slide with the drafted position, and its first layer takes no narrower verifier: not compared.
CASES: dict[str, dict[str, Any]] = {
    "llama": {"norm_output": True},
    "llama_norm_before_fc": {"norm_before_fc": True, "norm_before_residual": False},
    "qwen3_full_vocabulary": {"architecture": "qwen3", "draft_vocab_size": toy.VOCABULARY},
    "fc_norm_own_head": {"fc_norm": True, "train_head": True},
}


def load_upstream(folder):
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel.from_pretrained(folder, config=config)
    # Without embed_tokens in the file it holds uninitialised memory, which its own test for NaN does not always see.
    model._load_verifier_weights(overwrite_embed_tokens=True)
    return model.float().eval()


@pytest.fixture(params=CASES)
def pair(request, tmp_path, monkeypatch):
    """(settings, our draft, upstream's model of its checkpoint, verifier)."""
    monkeypatch.chdir(tmp_path)
    verifier = load_weights(toy.write_verifier(tmp_path / "verifier"))
    settings = CASES[request.param]
    draft = toy.random_draft(verifier, **settings)
    return settings, draft, load_upstream(toy.write_draft(tmp_path / "draft", draft, "verifier")), verifier


@torch.no_grad()
def test_upstream_computes_our_loss_and_our_first_drafts(pair):
    from speculators.losses.utils import resolve_loss_config

    settings, draft, upstream, verifier = pair
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 256, (LENGTH,), generator=generator)
    states = torch.randn(LENGTH, 3, 64, generator=generator)
    last = torch.randn(LENGTH, 64, generator=generator)
    everywhere = torch.ones(LENGTH, dtype=torch.bool)
    document = torch.zeros(LENGTH, dtype=torch.long)
    drafted, loss, _ = upstream(
        hidden_states=states[:-1].flatten(1)[None],
        input_ids=tokens[1:][None],
        document_ids=document[1:][None],
        loss_mask=everywhere[1:][None],
        verifier_last_hidden_states=last[1:][None],
        ttt_steps=STEPS,
        loss_config=resolve_loss_config("kl_div", "eager"),
    )
    kind = algorithms.load("eagle3")
    config = kind.Config(**{"speculative_tokens": STEPS, "ttt_steps": STEPS} | _settings_only(settings))
    ours = kind.objective(config, verifier, draft)(Batch(tokens, states, last, everywhere, document))
    assert float(ours.loss) == pytest.approx(float(loss), rel=1e-4)
    first = propose(draft, tokens, states, 1)[:, 0]
    assert torch.equal(draft.draft_to_target_D[drafted[0][0]], first)


def _settings_only(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in ("draft_vocab_size", "aux_layers")}
