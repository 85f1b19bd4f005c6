"""EAGLE-3 in vLLM against our drafting loop; the checks are those of `parity`."""

from typing import Any

import pytest

from algorithms.eagle3.drafting import draft_steps
from tests import toy
from tests.interop import parity
from tests.interop.serving import Served, needs_cpu_build

pytestmark = [pytest.mark.slow, needs_cpu_build]

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


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> dict[str, tuple[Any, Served]]:
    plain = parity.serve_cases(tmp_path_factory.mktemp("plain"), "eagle3", CASES)
    root = tmp_path_factory.mktemp("rope")
    return plain | parity.serve_cases(root, "eagle3", ROPE_CASES, rope_parameters=LLAMA3_ROPE)


each_case = pytest.mark.parametrize("case", [*CASES, *ROPE_CASES])


@each_case
def test_hidden_states_and_drafts_of_every_step_equal_vllms(served, case, record_property):
    parity.check_every_step(*served[case], draft_steps, record_property)


@each_case
def test_drafting_at_all_positions_at_once_gives_vllms_drafts(served, case):
    parity.check_all_positions_at_once("eagle3", *served[case])


@each_case
def test_the_checkpoint_read_back_drafts_as_vllm_does(served, case, tmp_path):
    parity.check_read_back("eagle3", *served[case], draft_steps, tmp_path)


@each_case
def test_the_run_holds_what_the_comparison_needs(served, case):
    parity.check_run(*served[case])


@each_case
def test_vllm_reports_the_draft_that_was_written(served, case):
    draft, done = served[case]
    kind = {"llama": "Eagle3LlamaForCausalLM", "qwen3": "Eagle3Qwen3ForCausalLM"}[draft.shape.layer["model_type"]]
    parity.check_report("eagle3", draft, done, kind)
