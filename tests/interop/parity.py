"""vLLM and our drafting loop compute the same drafts from the same checkpoint: hidden states, not only tokens.

The tests that every algorithm's `test_<algorithm>_drafting.py` runs over its own cases. A case is a tiny random
float32 draft with some of its settings changed. Two requests of different lengths run as one batch; 0..K drafts of
each proposal are forced to be accepted, so that every cache state occurs.
"""

from collections.abc import Callable, Collection
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import algorithms
from harness.verifiers.weights import load_weights
from tests import toy
from tests.interop.serving import RECORDERS, Served, needs_cpu_build, serve_drafts

RELATIVE_ERROR_MAX = 1e-5
PROMPT_LENGTHS = (23, 40)
MAX_TOKENS = 30
MASK_TOKEN_ID = 300  # a padding row of the toy vocabulary
Cases = dict[str, dict[str, Any]]


def prompts() -> list[list[int]]:
    """The prompts of every case, one of each length."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 256, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]


def serve_cases(
    root: Path, algorithm: str, cases: Cases, prepare: Callable[[Any], None], **verifier_changes: Any
) -> dict[str, tuple[Any, Served]]:
    """Serve one draft a case: (draft, what vLLM did) by case.

    Args:
        root: an empty folder.
        cases: arguments of `toy.random_draft` by name.
        prepare: changes each draft before it is written.
        verifier_changes: config keys of the toy verifier.
    """
    verifier = load_weights(toy.write_verifier(root / "verifier", **verifier_changes))
    drafts = {name: toy.random_draft(verifier, algorithm=algorithm, **settings) for name, settings in cases.items()}
    for name, draft in drafts.items():
        prepare(draft)
        toy.write_draft(root / name, draft, "verifier", algorithm)
    counts = {name: len(draft.shape.aux_layers) for name, draft in drafts.items()}
    recorder = RECORDERS[algorithms.engine_runner(algorithm)]
    served = serve_drafts(root, "verifier", prompts(), MAX_TOKENS, counts, forced=True, recorder=recorder)
    return {name: (drafts[name], served[name]) for name in cases}


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Of the whole vector: one small entry alone says nothing."""
    return float((found - wanted).norm() / wanted.norm())


def check_some_drafts_are_changed(draft: Any, done: Served, by: str) -> None:
    """A part of the draft that chooses after the head must change some drafts and leave some, to be compared at all."""
    chosen = first = 0
    for proposal in (proposal for request in done.proposals for proposal in request):
        without = draft.draft_to_target_D[(proposal.outputs_KH @ draft.lm_head.weight.T).argmax(dim=-1)]
        chosen += proposal.drafts_K.numel()
        first += int((without == proposal.drafts_K).sum())
    assert 0 < first < chosen, f"the {by} must change some drafts and leave some"


@pytest.mark.slow
@needs_cpu_build
class DraftingTests:
    """Attributes are what a subclass says of its algorithm; every test runs over every case.

    Attributes:
        algorithm: its name.
        steps: (draft, token_ids_S, aux_states_SAH, K) -> an object with `token_ids_K` and `output_KH`.
        architectures: the server's class (contract 1.4) by the draft's model type.
        base: arguments of `toy.random_draft` of all cases.
        groups: (config keys of a toy verifier, cases of its drafts), each served in a process of its own.
        not_read_back: cases whose checkpoint the test of reading back leaves out.
    """

    algorithm: ClassVar[str]
    steps: ClassVar[Callable[..., Any]]
    architectures: ClassVar[dict[str, str]]
    base: ClassVar[dict[str, Any]] = {}
    groups: ClassVar[tuple[tuple[dict[str, Any], Cases], ...]]
    not_read_back: ClassVar[Collection[str]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "case" in metafunc.fixturenames:
            reading = metafunc.function.__name__ == "test_the_checkpoint_read_back_drafts_as_vllm_does"
            left_out = self.not_read_back if reading else ()
            cases = [case for _, group in self.groups for case in group if case not in left_out]
            metafunc.parametrize("case", cases)

    def prepare(self, draft: Any) -> None:
        """Make what random weights leave too small to matter count."""

    @pytest.fixture(scope="class")
    def served(self, tmp_path_factory) -> dict[str, tuple[Any, Served]]:
        found: dict[str, tuple[Any, Served]] = {}
        for changes, group in self.groups:
            cases = {name: self.base | settings for name, settings in group.items()}
            found |= serve_cases(tmp_path_factory.mktemp("served"), self.algorithm, cases, self.prepare, **changes)
        return found

    def test_hidden_states_and_drafts_of_every_step_equal_vllms(self, served, case, record_property):
        draft, done = served[case]
        errors = []
        for request in done.proposals:
            for proposal in request:
                ours = self.steps(draft, proposal.token_ids_S, proposal.aux_states_SAH, proposal.drafts_K.numel())
                errors += [relative_error(*pair) for pair in zip(ours.output_KH, proposal.outputs_KH, strict=True)]
                assert torch.equal(ours.token_ids_K, proposal.drafts_K)
        record_property("relative_error_max", max(errors))
        record_property("steps", len(errors))
        assert max(errors) <= RELATIVE_ERROR_MAX

    def test_drafting_at_all_positions_at_once_gives_vllms_drafts(self, served, case):
        draft, done = served[case]
        propose = algorithms.load(self.algorithm).propose
        for request in done.proposals:
            whole = request[-1]
            drafts = propose(draft, whole.token_ids_S, whole.aux_states_SAH, whole.drafts_K.numel())
            for proposal in request:
                assert torch.equal(drafts[proposal.aux_states_SAH.shape[0] - 1], proposal.drafts_K)

    def test_the_checkpoint_read_back_drafts_as_vllm_does(self, served, case, tmp_path):
        draft, done = served[case]
        kind = algorithms.load(self.algorithm)
        changes = {"rope_parameters": draft.shape.layer["rope_parameters"]}
        verifier = load_weights(toy.write_verifier(tmp_path / "verifier", **changes))
        restored = kind.restore(*kind.export(draft), verifier)
        whole = done.proposals[0][-1]
        found = self.steps(restored, whole.token_ids_S, whole.aux_states_SAH, whole.drafts_K.numel())
        assert torch.equal(found.token_ids_K, whole.drafts_K)

    def test_the_run_holds_what_the_comparison_needs(self, served, case):
        """Lossless replies, and every number of acceptances."""
        draft, done = served[case]
        tokens = draft.shape.speculative_tokens
        assert done.replies == done.plain
        assert len(done.proposals) == len(PROMPT_LENGTHS)
        for request, length in zip(done.proposals, PROMPT_LENGTHS, strict=True):
            assert request[0].aux_states_SAH.shape[0] == length
            emitted = [b.token_ids_S.numel() - a.token_ids_S.numel() for a, b in pairwise(request)]
            assert set(emitted) >= set(range(1, tokens + 2)), "some number of acceptances did not occur"
            assert all(proposal.outputs_KH.shape[0] == tokens for proposal in request)

    def test_vllm_reports_the_draft_that_was_written(self, served, case):
        draft, done = served[case]
        assert done.counters["method"] == algorithms.load(self.algorithm).engine_method
        assert done.counters["num_speculative_tokens"] == draft.shape.speculative_tokens
        assert done.counters["architectures"] == [self.architectures[draft.shape.layer["model_type"]]]
        assert done.counters["verifier"] == "verifier"
