"""vLLM and our drafting loop compute the same drafts from the same checkpoint: hidden states, not only tokens.

The checks that every algorithm's `test_<algorithm>_drafting.py` runs over its own cases. A case is a tiny random
float32 draft with some of its settings changed. Two requests of different lengths run as one batch; 0..K drafts of
each proposal are forced to be accepted, so that every cache state occurs.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import algorithms
from harness.verifiers.weights import load_weights
from tests import toy
from tests.interop.serving import Served, serve_drafts

RELATIVE_ERROR_MAX = 1e-5
PROMPT_LENGTHS = (23, 40)
MAX_TOKENS = 30
MASK_TOKEN_ID = 300  # a padding row of the toy vocabulary
# Of `draft_steps`: (draft, token_ids_S, aux_states_SAH, K) -> an object with `token_ids_K` and `output_KH`.
Steps = Callable[[Any, torch.Tensor, torch.Tensor, int], Any]


def prompts() -> list[list[int]]:
    """The prompts of every case, one of each length."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 256, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]


def serve_cases(
    root: Path,
    algorithm: str,
    cases: dict[str, dict[str, Any]],
    recorder: str = "record_drafts",
    prepare: Callable[[Any], None] = lambda _: None,
    **verifier_changes: Any,
) -> dict[str, tuple[Any, Served]]:
    """Serve one draft a case: (draft, what vLLM did) by case.

    Args:
        root: an empty folder.
        cases: arguments of `toy.random_draft` by name.
        recorder: see `serve_drafts`.
        prepare: changes each draft before it is written.
        verifier_changes: config keys of the toy verifier.
    """
    verifier = load_weights(toy.write_verifier(root / "verifier", **verifier_changes))
    drafts = {name: toy.random_draft(verifier, algorithm=algorithm, **settings) for name, settings in cases.items()}
    for name, draft in drafts.items():
        prepare(draft)
        toy.write_draft(root / name, draft, "verifier", algorithm)
    counts = {name: len(draft.shape.aux_layers) for name, draft in drafts.items()}
    served = serve_drafts(root, "verifier", prompts(), MAX_TOKENS, counts, forced=True, recorder=recorder)
    return {name: (drafts[name], served[name]) for name in cases}


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Of the whole vector: one small entry alone says nothing."""
    return float((found - wanted).norm() / wanted.norm())


def check_every_step(draft: Any, done: Served, steps: Steps, record_property: Callable[[str, object], None]) -> None:
    """Drafts equal and hidden states within `RELATIVE_ERROR_MAX`, at every step of every proposal."""
    errors = []
    for request in done.proposals:
        for proposal in request:
            ours = steps(draft, proposal.token_ids_S, proposal.aux_states_SAH, proposal.drafts_K.numel())
            errors += [relative_error(*pair) for pair in zip(ours.output_KH, proposal.outputs_KH, strict=True)]
            assert torch.equal(ours.token_ids_K, proposal.drafts_K)
    record_property("relative_error_max", max(errors))
    record_property("steps", len(errors))
    assert max(errors) <= RELATIVE_ERROR_MAX


def check_all_positions_at_once(algorithm: str, draft: Any, done: Served) -> None:
    """`propose` over the whole sequence gives the drafts of every proposal."""
    propose = algorithms.load(algorithm).propose
    for request in done.proposals:
        whole = request[-1]
        drafts = propose(draft, whole.token_ids_S, whole.aux_states_SAH, whole.drafts_K.numel())
        for proposal in request:
            assert torch.equal(drafts[proposal.aux_states_SAH.shape[0] - 1], proposal.drafts_K)


def check_read_back(algorithm: str, draft: Any, done: Served, steps: Steps, folder: Path) -> None:
    """The draft restored from its checkpoint drafts as vLLM did."""
    kind = algorithms.load(algorithm)
    changes = {"rope_parameters": draft.shape.layer["rope_parameters"]}
    verifier = load_weights(toy.write_verifier(folder / "verifier", **changes))
    restored = kind.restore(*kind.export(draft), verifier)
    whole = done.proposals[0][-1]
    found = steps(restored, whole.token_ids_S, whole.aux_states_SAH, whole.drafts_K.numel())
    assert torch.equal(found.token_ids_K, whole.drafts_K)


def check_run(draft: Any, done: Served) -> None:
    """The run holds what the comparison needs: lossless replies, and every number of acceptances."""
    tokens = draft.shape.speculative_tokens
    assert done.replies == done.plain
    assert len(done.proposals) == len(PROMPT_LENGTHS)
    for request, length in zip(done.proposals, PROMPT_LENGTHS, strict=True):
        assert request[0].aux_states_SAH.shape[0] == length
        emitted = [b.token_ids_S.numel() - a.token_ids_S.numel() for a, b in pairwise(request)]
        assert set(emitted) >= set(range(1, tokens + 2)), "some number of acceptances did not occur"
        assert all(proposal.outputs_KH.shape[0] == tokens for proposal in request)


def check_report(algorithm: str, draft: Any, done: Served, architecture: str) -> None:
    """vLLM reports the draft that was written.

    Args:
        architecture: the server's class for it (contract 1.4).
    """
    assert done.counters["method"] == algorithms.load(algorithm).engine_method
    assert done.counters["num_speculative_tokens"] == draft.shape.speculative_tokens
    assert done.counters["architectures"] == [architecture]
    assert done.counters["verifier"] == "verifier"
