"""vLLM and our drafting loop compute the same drafts from the same checkpoint: hidden states, not only tokens.

A tiny random float32 verifier and drafts of random weights, every flag on and off. Two requests of different lengths
run as one batch; 0..K drafts of each proposal are forced to be accepted, so that every cache state occurs.
"""

from itertools import pairwise
from typing import Any

import pytest
import torch

import algorithms
from algorithms.eagle3.drafting import draft_steps
from harness.verifiers.weights import load_weights
from tests import toy
from tests.interop.serving import Served, needs_cpu_build, serve_drafts

pytestmark = [pytest.mark.slow, needs_cpu_build]

RELATIVE_ERROR_MAX = 1e-5
PROMPT_LENGTHS = (23, 40)
MAX_TOKENS = 30
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


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 256, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]


def serve_cases(root, cases: dict[str, dict[str, Any]], **verifier_changes: Any) -> dict[str, tuple[Any, Served]]:
    verifier = load_weights(toy.write_verifier(root / "verifier", **verifier_changes))
    drafts = {name: toy.random_draft(verifier, **settings) for name, settings in cases.items()}
    for name, draft in drafts.items():
        toy.write_draft(root / name, draft, "verifier")
    counts = {name: len(draft.shape.aux_layers) for name, draft in drafts.items()}
    served = serve_drafts(root, "verifier", prompts(), MAX_TOKENS, counts, forced=True)
    return {name: (drafts[name], served[name]) for name in cases}


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> dict[str, tuple[Any, Served]]:
    plain = serve_cases(tmp_path_factory.mktemp("plain"), CASES)
    return plain | serve_cases(tmp_path_factory.mktemp("rope"), ROPE_CASES, rope_parameters=LLAMA3_ROPE)


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


each_case = pytest.mark.parametrize("case", [*CASES, *ROPE_CASES])


@each_case
def test_hidden_states_and_drafts_of_every_step_equal_vllms(served, case, record_property):
    draft, done = served[case]
    errors = []
    for request in done.proposals:
        for proposal in request:
            ours = draft_steps(draft, proposal.token_ids_S, proposal.aux_states_SAH, proposal.drafts_K.numel())
            errors += [relative_error(*pair) for pair in zip(ours.output_KH, proposal.outputs_KH, strict=True)]
            assert torch.equal(ours.token_ids_K, proposal.drafts_K)
    record_property("relative_error_max", max(errors))
    record_property("steps", len(errors))
    assert max(errors) <= RELATIVE_ERROR_MAX


@each_case
def test_drafting_at_all_positions_at_once_gives_vllms_drafts(served, case):
    draft, done = served[case]
    propose = algorithms.load("eagle3").propose
    for request in done.proposals:
        whole = request[-1]
        drafts = propose(draft, whole.token_ids_S, whole.aux_states_SAH, whole.drafts_K.numel())
        for proposal in request:
            assert torch.equal(drafts[proposal.aux_states_SAH.shape[0] - 1], proposal.drafts_K)


@each_case
def test_the_checkpoint_read_back_drafts_as_vllm_does(served, case, tmp_path):
    draft, done = served[case]
    kind = algorithms.load("eagle3")
    content, tensors = kind.export(draft)
    verifier = load_weights(
        toy.write_verifier(tmp_path / "verifier", rope_parameters=draft.shape.layer["rope_parameters"])
    )
    whole = done.proposals[0][-1]
    restored = kind.restore(content, tensors, verifier)
    assert torch.equal(
        draft_steps(restored, whole.token_ids_S, whole.aux_states_SAH, whole.drafts_K.numel()).token_ids_K,
        whole.drafts_K,
    )


@each_case
def test_the_run_holds_what_the_comparison_needs(served, case):
    draft, done = served[case]
    tokens = draft.shape.speculative_tokens
    assert done.replies == done.plain
    assert len(done.proposals) == len(PROMPT_LENGTHS)
    for request, length in zip(done.proposals, PROMPT_LENGTHS, strict=True):
        assert request[0].aux_states_SAH.shape[0] == length
        emitted = [b.token_ids_S.numel() - a.token_ids_S.numel() for a, b in pairwise(request)]
        assert set(emitted) >= set(range(1, tokens + 2)), "some number of acceptances did not occur"
        assert all(proposal.outputs_KH.shape[0] == tokens for proposal in request)


@each_case
def test_vllm_reports_the_draft_that_was_written(served, case):
    draft, done = served[case]
    layer = draft.shape.layer
    assert done.counters["method"] == algorithms.load("eagle3").engine_method
    assert done.counters["num_speculative_tokens"] == draft.shape.speculative_tokens
    assert done.counters["architectures"] == [
        {"llama": "Eagle3LlamaForCausalLM", "qwen3": "Eagle3Qwen3ForCausalLM"}[layer["model_type"]]
    ]
    assert done.counters["verifier"] == "verifier"
