"""DFlash in vLLM against our drafting of one block; the checks are those of `parity`."""

from typing import Any

import pytest

from algorithms.dflash.drafting import draft_block
from tests import toy
from tests.interop import parity
from tests.interop.serving import Served, needs_cpu_build

pytestmark = [pytest.mark.slow, needs_cpu_build]

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
BASE = {"mask_token_id": parity.MASK_TOKEN_ID, "block_size": 4}


def serve(root, cases: dict[str, dict[str, Any]], **verifier_changes: Any) -> dict[str, tuple[Any, Served]]:
    given = {name: BASE | settings for name, settings in cases.items()}
    return parity.serve_cases(root, "dflash", given, **verifier_changes)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> dict[str, tuple[Any, Served]]:
    plain = serve(tmp_path_factory.mktemp("plain"), CASES)
    return plain | serve(tmp_path_factory.mktemp("heads"), HEAD_CASES, kind="qwen3", **HEADS)


each_case = pytest.mark.parametrize("case", [*CASES, *HEAD_CASES])


@each_case
def test_hidden_states_and_drafts_of_every_step_equal_vllms(served, case, record_property):
    parity.check_every_step(*served[case], draft_block, record_property)


@each_case
def test_drafting_at_all_positions_at_once_gives_vllms_drafts(served, case):
    parity.check_all_positions_at_once("dflash", *served[case])


@pytest.mark.parametrize("case", CASES)
def test_the_checkpoint_read_back_drafts_as_vllm_does(served, case, tmp_path):
    parity.check_read_back("dflash", *served[case], draft_block, tmp_path)


@each_case
def test_the_run_holds_what_the_comparison_needs(served, case):
    parity.check_run(*served[case])


@each_case
def test_vllm_reports_the_draft_that_was_written(served, case):
    parity.check_report("dflash", *served[case], "DFlashDraftModel")
