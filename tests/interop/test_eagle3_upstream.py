"""The reference trainer's EAGLE-3 loads our checkpoints and computes the same drafts and the same loss.

Its model reads the sequence shifted by one: token t+1 beside state t.
"""

from typing import Any

import pytest
import torch

from algorithms.eagle3.drafting import propose
from tests import toy
from tests.interop import upstream

pytestmark = pytest.mark.slow

LENGTH, STEPS = 24, 3
# Its windows do not slide with the drafted position, and its first layer takes no narrower verifier: not compared.
CASES: dict[str, dict[str, Any]] = {
    "llama": {"norm_output": True},
    "llama_norm_before_fc": {"norm_before_fc": True, "norm_before_residual": False},
    "qwen3_full_vocabulary": {"architecture": "qwen3", "draft_vocab_size": toy.VOCABULARY},
    "fc_norm_own_head": {"fc_norm": True, "train_head": True},
}


@pytest.fixture(params=CASES)
def pair(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return upstream.make_pair(tmp_path, "eagle3", CASES[request.param])


@torch.no_grad()
def test_upstream_computes_our_loss_and_our_first_drafts(pair):
    batch = upstream.random_batch(torch.ones(LENGTH, dtype=torch.bool), torch.zeros(LENGTH, dtype=torch.long))
    given = upstream.inputs(batch, shift=1)
    drafted, loss, _ = pair.theirs(**given, ttt_steps=STEPS, loss_config=upstream.losses("kl_div"))
    assert float(pair.our_loss(batch, ttt_steps=STEPS).loss) == pytest.approx(float(loss), rel=1e-4)
    first = propose(pair.ours, batch.token_ids_S, batch.aux_states_SAH, 1)[:, 0]
    assert torch.equal(pair.ours.draft_to_target_D[drafted[0][0]], first)
