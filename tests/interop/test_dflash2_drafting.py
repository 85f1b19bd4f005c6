"""DFlash2 in vLLM's second model runner against our drafting of one block; the checks are those of `parity`."""

from typing import Any

import pytest
import torch

from algorithms.dflash2.drafting import draft_block
from tests import toy
from tests.interop import parity
from tests.interop.serving import Served, needs_cpu_build

pytestmark = [pytest.mark.slow, needs_cpu_build]

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
BASE = {"mask_token_id": parity.MASK_TOKEN_ID, "block_size": 4, "draft_vocab_size": toy.VOCABULARY,
        "selector_rank": 8, "selector_top_k": 6}  # fmt: skip


@torch.no_grad()
def speak_up(draft: Any) -> None:
    """Make the selector's scores as large as the logits."""
    draft.candidate_selector.predecessor_codebook.mul_(8.0)
    draft.candidate_selector.successor_codebook.mul_(8.0)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> dict[str, tuple[Any, Served]]:
    given = {name: BASE | settings for name, settings in CASES.items()}
    root = tmp_path_factory.mktemp("served")
    return parity.serve_cases(root, "dflash2", given, recorder="record_second_runner", prepare=speak_up)


each_case = pytest.mark.parametrize("case", CASES)


@each_case
def test_hidden_states_and_drafts_of_every_step_equal_vllms(served, case, record_property):
    parity.check_every_step(*served[case], draft_block, record_property)


@each_case
def test_drafting_at_all_positions_at_once_gives_vllms_drafts(served, case):
    parity.check_all_positions_at_once("dflash2", *served[case])


@each_case
def test_the_checkpoint_read_back_drafts_as_vllm_does(served, case, tmp_path):
    parity.check_read_back("dflash2", *served[case], draft_block, tmp_path)


@each_case
def test_the_run_holds_what_the_comparison_needs(served, case):
    draft, done = served[case]
    parity.check_run(draft, done)
    chosen = first = 0
    for proposal in (proposal for request in done.proposals for proposal in request):
        chosen += proposal.drafts_K.numel()
        first += int(((proposal.outputs_KH @ draft.lm_head.weight.T).argmax(dim=-1) == proposal.drafts_K).sum())
    assert 0 < first < chosen, "the selector must change some drafts and leave some"


@each_case
def test_vllm_reports_the_draft_that_was_written(served, case):
    parity.check_report("dflash2", *served[case], "DFlash2DraftModel")
