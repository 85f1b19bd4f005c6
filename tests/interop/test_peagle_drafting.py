"""P-EAGLE in vLLM against our drafting; the checks are those of `parity`."""

from typing import Any

import pytest

from algorithms.peagle.drafting import draft_steps
from tests import toy
from tests.interop import parity
from tests.interop.serving import Served, needs_cpu_build

pytestmark = [pytest.mark.slow, needs_cpu_build]

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


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> dict[str, tuple[Any, Served]]:
    masked = {"mask_token_id": parity.MASK_TOKEN_ID}
    cases, scaled = ({name: masked | case for name, case in group.items()} for group in (CASES, ROPE_CASES))
    plain = parity.serve_cases(tmp_path_factory.mktemp("plain"), "peagle", cases)
    return plain | parity.serve_cases(tmp_path_factory.mktemp("yarn"), "peagle", scaled, rope_parameters=YARN)


each_case = pytest.mark.parametrize("case", [*CASES, *ROPE_CASES])


@each_case
def test_hidden_states_and_drafts_of_every_step_equal_vllms(served, case, record_property):
    parity.check_every_step(*served[case], draft_steps, record_property)


@each_case
def test_drafting_at_all_positions_at_once_gives_vllms_drafts(served, case):
    parity.check_all_positions_at_once("peagle", *served[case])


@each_case
def test_the_checkpoint_read_back_drafts_as_vllm_does(served, case, tmp_path):
    parity.check_read_back("peagle", *served[case], draft_steps, tmp_path)


@each_case
def test_the_run_holds_what_the_comparison_needs(served, case):
    parity.check_run(*served[case])


@each_case
def test_vllm_reports_the_draft_that_was_written(served, case):
    draft, done = served[case]
    kind = {"llama": "PeagleLlamaForCausalLM", "qwen3": "PeagleQwen3ForCausalLM"}[draft.shape.layer["model_type"]]
    parity.check_report("peagle", draft, done, kind)
