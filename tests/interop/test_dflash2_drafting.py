"""DFlash2 in vLLM's second model runner against our drafting of one block; the tests are those of `parity`."""

from typing import Any, ClassVar

import torch

from algorithms.dflash2.drafting import draft_block
from tests import toy
from tests.interop import parity

# Arguments of `toy.random_draft`: every setting that changes the computation takes each of its values at least once.
CASES: dict[str, dict[str, Any]] = {
    "bidirectional": {},
    "causal_fewer_tokens": {"causal": True, "speculative_tokens": 2, "block_size": 6},
    "one_token": {"speculative_tokens": 1, "block_size": 2, "aux_layers": (6,), "selector_top_k": 2},
    "two_layers": {"layers": 2, "speculative_tokens": 4, "block_size": 5, "conv_kernel_size": 3},
    "two_layers_causal": {"layers": 2, "causal": True, "conv_group_size": 64, "selector_rank": 24},
    "window": {"sliding_window": 8, "speculative_tokens": 7, "block_size": 8, "train_head": True},
    "window_below_the_block": {"sliding_window": 3, "conv_group_size": 4, "conv_kernel_size": 4},
    "two_layers_window_causal": {"layers": 2, "sliding_window": 6, "causal": True, "conv_kernel_size": 1},
}


class TestDrafting(parity.DraftingTests):
    algorithm = "dflash2"
    steps = staticmethod(draft_block)
    architectures: ClassVar = {"qwen3": "DFlash2DraftModel"}
    base: ClassVar = {
        "mask_token_id": parity.MASK_TOKEN_ID, "block_size": 4, "draft_vocab_size": toy.VOCABULARY,
        "selector_rank": 8, "selector_top_k": 6,
    }  # fmt: skip
    groups = (({}, CASES),)

    @torch.no_grad()
    def prepare(self, draft):
        """Make the selector's scores as large as the logits."""
        draft.candidate_selector.predecessor_codebook.mul_(8.0)
        draft.candidate_selector.successor_codebook.mul_(8.0)

    def test_the_run_holds_what_the_comparison_needs(self, served, case):
        super().test_the_run_holds_what_the_comparison_needs(served, case)
        parity.check_some_drafts_are_changed(*served[case], by="selector")
