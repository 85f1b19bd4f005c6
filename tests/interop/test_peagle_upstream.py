"""The reference trainer's P-EAGLE loads our checkpoints and computes the same loss and drafts.

Its model reads the sequence shifted by one: token t+1 beside state t. It draws its entries by itself, so ours are put
in their place; how many it draws is compared apart.
"""

from typing import Any

import pytest
import torch

import algorithms
from algorithms.contract import Batch
from algorithms.eagle3.training import rows_of
from algorithms.peagle.training import sample_depths
from tests import toy
from tests.interop import upstream

pytestmark = pytest.mark.slow

LENGTHS, PROMPTS, DEPTHS = (30, 18), (7, 4), 5
# Its masks are not cut by a window narrower than the depths, and its first layer takes no narrower verifier.
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama_norms_own_embedding": {"norm_before_fc": True, "norm_before_residual": True, "train_embedding": True},
    "qwen3_two_layers": {"architecture": "qwen3", "layers": 2, "draft_vocab_size": toy.VOCABULARY},
    "window_own_head": {"sliding_window": 8, "train_head": True},
}


def two_documents() -> Batch:
    mask = torch.cat([torch.arange(length) >= prompt for length, prompt in zip(LENGTHS, PROMPTS, strict=True)])
    document = torch.cat([torch.full((length,), number) for number, length in enumerate(LENGTHS)])
    return upstream.random_batch(mask, document, draw=11)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_upstream_computes_our_loss_and_our_first_choices(case, tmp_path, monkeypatch):
    from speculators.models.peagle import core

    monkeypatch.chdir(tmp_path)
    pair = upstream.make_pair(tmp_path, "peagle", {"mask_token_id": upstream.MASK_TOKEN_ID} | CASES[case])
    batch = two_documents()
    rows = rows_of(batch, DEPTHS)
    chosen = sample_depths(rows.valid_RK, pair.config(num_depths=DEPTHS), batch.draw)
    anchors = [torch.arange(len(batch.token_ids_S) - 1), *(rows.slot_S[rows.scored_R[kept]] for kept in chosen[1:])]
    depth = torch.cat([torch.full((len(part),), number) for number, part in enumerate(anchors)])
    monkeypatch.setattr(core, "generate_cod_sample_indices", lambda **_: (torch.cat(anchors), depth))
    given = upstream.inputs(batch, shift=1)
    # The shift pairs the last state of one document with the first token of the next.
    given["loss_mask"] = given["loss_mask"].clone()
    given["loss_mask"][0, LENGTHS[0] - 1] = False
    _, loss, metrics = pair.theirs(**given, loss_config=upstream.losses("kl_div"), num_depths=DEPTHS)
    ours = pair.our_loss(batch, num_depths=DEPTHS)
    assert ours.loss.item() == pytest.approx(loss.item(), rel=1e-4)
    for step in range(DEPTHS):
        right, total = (metrics[f"position_{step}_acc_{part}"].item() for part in ("sum", "total"))
        assert total == len(chosen[step])
        assert ours.metrics[f"agree_step_{step + 1}"] == pytest.approx(right / total)


def test_as_many_entries_are_drawn_as_upstream_draws():
    from speculators.models.peagle.data import generate_cod_sample_indices

    mask = torch.arange(200) >= 20
    _, depth = generate_cod_sample_indices(200, mask[None].float(), num_depths=8)
    said = algorithms.load("peagle").Config(speculative_tokens=1, mask_token_id=upstream.MASK_TOKEN_ID)
    valid = torch.arange(180, 0, -1)[:, None] > torch.arange(8)
    ours = [len(kept) for kept in sample_depths(valid, said, draw=0)]
    assert ours[1:] == torch.bincount(depth).tolist()[1:]
