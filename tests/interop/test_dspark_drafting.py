"""DSpark in vLLM's second model runner against our walk over one block; the tests are those of `parity`."""

from typing import Any, ClassVar

import torch

from algorithms.dspark.drafting import draft_steps
from tests import toy
from tests.interop import parity

FULL = toy.VOCABULARY
# Arguments of `toy.random_draft`: every setting that changes the computation takes each of its values at least once.
CASES: dict[str, dict[str, Any]] = {
    "anchor_drafts": {},
    "anchor_does_not": {"sample_from_anchor": False, "block_size": 4},
    "one_token": {"speculative_tokens": 1, "block_size": 1, "aux_layers": (6,)},
    "window_causal": {"sliding_window": 8, "block_size": 5, "layers": 2},
    "window_bidirectional": {"sliding_window": 3, "causal": False, "speculative_tokens": 5, "block_size": 5},
    "full_causal": {"causal": True, "draft_vocab_size": FULL, "confidence_head": False, "layers": 2},
    "anchor_does_not_causal": {
        "sample_from_anchor": False, "causal": True, "block_size": 7, "confidence_head_with_markov": False,
    },
    "three_layers": {
        "layers": 3, "sample_from_anchor": False, "speculative_tokens": 4, "block_size": 5, "train_head": True,
        "aux_layers": (0, 2, 4, 6), "draft_vocab_size": FULL,
    },
}  # fmt: skip


class TestDrafting(parity.DraftingTests):
    algorithm = "dspark"
    steps = staticmethod(draft_steps)
    architectures: ClassVar = {"qwen3": "Qwen3DSparkModel"}
    base: ClassVar = {"mask_token_id": parity.MASK_TOKEN_ID, "block_size": 3, "markov_rank": 8}
    groups = (({}, CASES),)

    @torch.no_grad()
    def prepare(self, draft):
        """Make the Markov head's bias about as large as the logits."""
        draft.markov_head.markov_w1.weight.mul_(8.0)
        draft.markov_head.markov_w2.weight.mul_(4.0)

    def test_the_run_holds_what_the_comparison_needs(self, served, case):
        super().test_the_run_holds_what_the_comparison_needs(served, case)
        parity.check_some_drafts_are_changed(*served[case], by="Markov head")
