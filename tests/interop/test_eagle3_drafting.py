"""EAGLE-3 in vLLM against our drafting loop; the tests are those of `parity`."""

from typing import Any, ClassVar

from algorithms.eagle3.drafting import draft_steps
from tests import toy
from tests.interop import parity

LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
FULL = toy.VOCABULARY
# Arguments of `toy.random_draft`: every setting that changes the computation takes each of its values at least once.
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama_one_token": {"speculative_tokens": 1, "norm_before_residual": False},
    "llama_norm_output": {"norm_output": True, "draft_vocab_size": FULL, "speculative_tokens": 5},
    "llama_norm_before_fc": {"norm_before_fc": True, "norm_before_residual": False, "train_head": True},
    "llama_fc_norm_two_layers": {"fc_norm": True, "layers": 2, "speculative_tokens": 4},
    "llama_window": {"sliding_window": 8, "norm_output": True, "norm_before_residual": False},
    "llama_four_states": {"aux_layers": (0, 2, 4, 6), "intermediate_size": 96},
    "qwen3": {"architecture": "qwen3", "norm_before_residual": False, "norm_before_fc": True},
    "qwen3_two_layers_window": {
        "architecture": "qwen3", "layers": 2, "sliding_window": 8, "norm_output": True, "draft_vocab_size": FULL,
        "speculative_tokens": 4, "train_head": True,
    },
    "qwen3_fc_norm_one_state": {"architecture": "qwen3", "fc_norm": True, "aux_layers": (6,)},
}  # fmt: skip
ROPE_CASES: dict[str, dict[str, Any]] = {"llama3_rope": {}, "llama3_rope_qwen3": {"architecture": "qwen3", "layers": 2}}


class TestDrafting(parity.DraftingTests):
    algorithm = "eagle3"
    steps = staticmethod(draft_steps)
    architectures: ClassVar = {"llama": "Eagle3LlamaForCausalLM", "qwen3": "Eagle3Qwen3ForCausalLM"}
    groups = (({}, CASES), ({"rope_parameters": LLAMA3_ROPE}, ROPE_CASES))
