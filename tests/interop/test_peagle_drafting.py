"""P-EAGLE in vLLM against our drafting; the tests are those of `parity`."""

from typing import Any, ClassVar

from algorithms.peagle.drafting import draft_steps
from tests import toy
from tests.interop import parity

FULL = toy.VOCABULARY
# Arguments of `toy.random_draft`: every setting that changes the computation takes each of its values at least once.
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama_one_token": {"speculative_tokens": 1, "norm_before_residual": True},
    "llama_norm_before_fc": {"norm_before_fc": True, "draft_vocab_size": FULL, "speculative_tokens": 5},
    "llama_two_layers_own_embedding": {"layers": 2, "train_embedding": True, "speculative_tokens": 4},
    "llama_window": {"sliding_window": 8, "norm_before_residual": True, "train_head": True},
    "llama_narrow_window": {"sliding_window": 2, "layers": 2, "speculative_tokens": 4},
    "llama_four_states": {"aux_layers": (0, 2, 4, 6), "intermediate_size": 96},
    "qwen3": {"architecture": "qwen3", "norm_before_residual": True, "norm_before_fc": True},
    "qwen3_two_layers_window": {
        "architecture": "qwen3", "layers": 2, "sliding_window": 8, "draft_vocab_size": FULL, "speculative_tokens": 4,
        "train_head": True, "train_embedding": True,
    },
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.5,
}  # fmt: skip
ROPE_CASES: dict[str, dict[str, Any]] = {"yarn": {}, "yarn_qwen3": {"architecture": "qwen3", "layers": 2}}


class TestDrafting(parity.DraftingTests):
    algorithm = "peagle"
    steps = staticmethod(draft_steps)
    architectures: ClassVar = {"llama": "PeagleLlamaForCausalLM", "qwen3": "PeagleQwen3ForCausalLM"}
    base: ClassVar = {"mask_token_id": parity.MASK_TOKEN_ID}
    groups = (({}, CASES), ({"rope_parameters": YARN}, ROPE_CASES))
