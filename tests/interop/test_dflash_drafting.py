"""DFlash in vLLM against our drafting of one block; the tests are those of `parity`."""

from typing import Any, ClassVar

from algorithms.dflash.drafting import draft_block
from tests import toy
from tests.interop import parity

FULL = toy.VOCABULARY
# Arguments of `toy.random_draft`: every setting that changes the computation takes each of its values at least once.
CASES: dict[str, dict[str, Any]] = {
    "bidirectional": {},
    "causal": {"causal": True, "draft_vocab_size": FULL},
    "causal_fewer_tokens": {"causal": True, "speculative_tokens": 2, "block_size": 6},
    "one_token": {"speculative_tokens": 1, "block_size": 2, "aux_layers": (6,)},
    "window": {"sliding_window": 8, "speculative_tokens": 5, "block_size": 6, "train_head": True},
    "window_below_the_block": {"sliding_window": 3, "speculative_tokens": 5, "block_size": 6},
    "window_causal": {"sliding_window": 8, "causal": True, "intermediate_size": 96},
    "two_layers": {"layers": 2, "draft_vocab_size": FULL, "speculative_tokens": 4, "block_size": 5},
    "three_layers_window_causal": {"layers": 3, "sliding_window": 6, "causal": True, "aux_layers": (0, 2, 4, 6)},
}  # fmt: skip
# Of a verifier with other heads: four query heads on two key heads, narrower than the width.
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
HEAD_CASES: dict[str, dict[str, Any]] = {"qwen_heads": {"layers": 2}, "qwen_heads_causal": {"causal": True}}


class TestDrafting(parity.DraftingTests):
    algorithm = "dflash"
    steps = staticmethod(draft_block)
    architectures: ClassVar = {"qwen3": "DFlashDraftModel"}
    base: ClassVar = {"mask_token_id": parity.MASK_TOKEN_ID, "block_size": 4}
    groups = (({}, CASES), ({"kind": "qwen3", **HEADS}, HEAD_CASES))
    not_read_back = HEAD_CASES  # of another verifier
