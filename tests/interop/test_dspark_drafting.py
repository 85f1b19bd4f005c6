"""DSpark in vLLM's second model runner against our walk over one block; the checks are those of `parity`."""

from typing import Any

import pytest
import torch

from algorithms.dspark.drafting import draft_steps
from tests import toy
from tests.interop import parity
from tests.interop.serving import Served, needs_cpu_build

pytestmark = [pytest.mark.slow, needs_cpu_build]

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
BASE = {"mask_token_id": parity.MASK_TOKEN_ID, "block_size": 3, "markov_rank": 8}


@torch.no_grad()
def speak_up(draft: Any) -> None:
    """Make the Markov head's bias about as large as the logits."""
    draft.markov_head.markov_w1.weight.mul_(8.0)
    draft.markov_head.markov_w2.weight.mul_(4.0)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> dict[str, tuple[Any, Served]]:
    given = {name: BASE | settings for name, settings in CASES.items()}
    root = tmp_path_factory.mktemp("served")
    return parity.serve_cases(root, "dspark", given, recorder="record_second_runner", prepare=speak_up)


each_case = pytest.mark.parametrize("case", CASES)


@each_case
def test_hidden_states_and_drafts_of_every_step_equal_vllms(served, case, record_property):
    parity.check_every_step(*served[case], draft_steps, record_property)


@each_case
def test_drafting_at_all_positions_at_once_gives_vllms_drafts(served, case):
    parity.check_all_positions_at_once("dspark", *served[case])


@each_case
def test_the_checkpoint_read_back_drafts_as_vllm_does(served, case, tmp_path):
    parity.check_read_back("dspark", *served[case], draft_steps, tmp_path)


@each_case
def test_the_run_holds_what_the_comparison_needs(served, case):
    draft, done = served[case]
    parity.check_run(draft, done)
    chosen = first = 0
    for proposal in (proposal for request in done.proposals for proposal in request):
        without = draft.draft_to_target_D[(proposal.outputs_KH @ draft.lm_head.weight.T).argmax(dim=-1)]
        chosen += proposal.drafts_K.numel()
        first += int((without == proposal.drafts_K).sum())
    assert 0 < first < chosen, "the Markov head must change some drafts and leave some"


@each_case
def test_vllm_reports_the_draft_that_was_written(served, case):
    parity.check_report("dspark", *served[case], "Qwen3DSparkModel")
