"""The reference trainer (speculators 0.9.0) loads our P-EAGLE checkpoints and computes the same loss and drafts.

An oracle only: the product does not use it. Its model reads the sequence shifted by one: token t+1 beside state t. It
draws its entries by itself, so ours are put in their place; how many it draws is compared apart.
"""

from typing import Any

import pytest
import torch

import algorithms
from algorithms.contract import Batch
from algorithms.eagle3.training import rows_of
from algorithms.peagle.training import sample_depths
from harness.verifiers.weights import load_weights
from tests import toy

pytestmark = pytest.mark.slow

LENGTHS, PROMPTS, DEPTHS, MASK = (30, 18), (7, 4), 5, 300
# Its masks are not cut by a window narrower than the depths, and its first layer takes no narrower verifier.
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama_norms_own_embedding": {"norm_before_fc": True, "norm_before_residual": True, "train_embedding": True},
    "qwen3_two_layers": {"architecture": "qwen3", "layers": 2, "draft_vocab_size": toy.VOCABULARY},
    "window_own_head": {"sliding_window": 8, "train_head": True},
}


def load_upstream(folder, own_embedding: bool):
    from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig

    config = PEagleSpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = PEagleDraftModel.from_pretrained(folder, config=config)
    # Without embed_tokens in the file it holds uninitialised memory, which its own test for NaN does not always see.
    model._load_verifier_weights(overwrite_embed_tokens=not own_embedding)
    return model.float().eval()


def two_documents() -> Batch:
    generator = torch.Generator().manual_seed(2)
    size = sum(LENGTHS)
    return Batch(
        torch.randint(0, 256, (size,), generator=generator),
        torch.randn(size, 3, 64, generator=generator),
        torch.randn(size, 64, generator=generator),
        torch.cat([torch.arange(length) >= prompt for length, prompt in zip(LENGTHS, PROMPTS, strict=True)]),
        torch.cat([torch.full((length,), number) for number, length in enumerate(LENGTHS)]),
        draw=11,
    )


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_upstream_computes_our_loss_and_our_first_choices(case, tmp_path, monkeypatch):
    from speculators.losses.utils import resolve_loss_config
    from speculators.models.peagle import core

    monkeypatch.chdir(tmp_path)
    verifier = load_weights(toy.write_verifier(tmp_path / "verifier"))
    settings, kind = {"mask_token_id": MASK} | CASES[case], algorithms.load("peagle")
    draft = toy.random_draft(verifier, algorithm="peagle", **settings)
    own = draft.shape.own_embedding
    upstream = load_upstream(toy.write_draft(tmp_path / "draft", draft, "verifier", "peagle"), own)
    settings.pop("draft_vocab_size", None)
    config, batch = kind.Config(speculative_tokens=3, num_depths=DEPTHS, **settings), two_documents()
    rows = rows_of(batch, DEPTHS)
    chosen = sample_depths(rows.valid_RK, config, batch.draw)
    anchors = [torch.arange(len(batch.token_ids_S) - 1), *(rows.slot_S[rows.scored_R[kept]] for kept in chosen[1:])]
    depth = torch.cat([torch.full((len(part),), number) for number, part in enumerate(anchors)])
    monkeypatch.setattr(core, "generate_cod_sample_indices", lambda **_: (torch.cat(anchors), depth))
    mask = batch.loss_mask_S[1:].clone()
    mask[LENGTHS[0] - 1] = False  # the shift pairs the last state of one document with the first token of the next
    _, loss, metrics = upstream(
        hidden_states=batch.aux_states_SAH[:-1].flatten(1)[None],
        input_ids=batch.token_ids_S[1:][None],
        document_ids=batch.document_S[:-1][None],
        loss_mask=mask[None],
        verifier_last_hidden_states=batch.last_state_SH[1:][None],
        loss_config=resolve_loss_config("kl_div", "eager"),
        num_depths=DEPTHS,
    )
    ours = kind.objective(config, verifier, draft)(batch)
    assert ours.loss.item() == pytest.approx(loss.item(), rel=1e-4)
    for step in range(DEPTHS):
        right, total = (metrics[f"position_{step}_acc_{part}"].item() for part in ("sum", "total"))
        assert total == len(chosen[step])
        assert ours.metrics[f"agree_step_{step + 1}"] == pytest.approx(right / total)


def test_as_many_entries_are_drawn_as_upstream_draws():
    from speculators.models.peagle.data import generate_cod_sample_indices

    mask = torch.arange(200) >= 20
    _, depth = generate_cod_sample_indices(200, mask[None].float(), num_depths=8)
    said = algorithms.load("peagle").Config(speculative_tokens=1, mask_token_id=MASK)
    valid = torch.arange(180, 0, -1)[:, None] > torch.arange(8)
    ours = [len(kept) for kept in sample_depths(valid, said, draw=0)]
    assert ours[1:] == torch.bincount(depth).tolist()[1:]
