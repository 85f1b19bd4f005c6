"""Drafts beside a verifier that reads images: vLLM against our drafting loops, behind images of several shapes.

The verifier's positions have three axes there; a draft counts tokens (`harness.serving.cpu_support.image_positions`).
"""

from pathlib import Path
from typing import Any

import pytest
import torch

import algorithms
from algorithms.dflash.drafting import draft_block
from algorithms.eagle3.drafting import draft_steps
from algorithms.peagle.drafting import draft_steps as draft_side_by_side
from harness.data.chat import load_tokenizer, prompt_token_ids
from harness.data.images import decoded
from harness.verifiers.weights import load_weights
from tests import toy
from tests.interop.parity import RELATIVE_ERROR_MAX, relative_error
from tests.interop.serving import Served, needs_cpu_build, serve_drafts
from tests.vision import pictured, write_picture_verifier

pytestmark = [pytest.mark.slow, needs_cpu_build]
MAX_TOKENS = 24
AUX = (1, 2, 3)
LOOPS = {"eagle3": draft_steps, "peagle": draft_side_by_side, "dflash": draft_block}
SETTINGS: dict[str, dict[str, Any]] = {
    "eagle3": {}, "peagle": {"mask_token_id": 300}, "dflash": {"mask_token_id": 300, "block_size": 4},
}  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> dict[str, tuple[Any, Served]]:
    """Each draft with our repair, and again as vLLM is shipped."""
    root = tmp_path_factory.mktemp("served")
    verifier = write_picture_verifier(root / "verifier")
    prompts, images = _prompts(verifier)
    drafts, names = {}, [*LOOPS, "eagle3_as_shipped"]
    for name in names:
        algorithm = name.partition("_")[0]
        weights = load_weights(verifier)
        drafts[name] = toy.random_draft(weights, aux_layers=AUX, algorithm=algorithm, **SETTINGS[algorithm])
        toy.write_draft(root / name, drafts[name], "verifier", algorithm)
    counts = dict.fromkeys(names, len(AUX))
    done = serve_drafts(
        root, "verifier", prompts, MAX_TOKENS, counts, forced=True, images=images, as_shipped=names[len(LOOPS) :]
    )
    return {name: (drafts[name], done[name]) for name in names}


def _prompts(verifier: Path) -> tuple[list[list[int]], list[list[str]]]:
    """Questions about pictures of three shapes, two of which shift positions, and one without a picture."""
    tokenizer = load_tokenizer(verifier)
    by_size = {decoded(urls[0]).size: (messages, urls) for messages, urls in pictured(30)}
    asked = [by_size[size] for size in ((96, 64), (64, 64), (64, 32))]
    asked.append(([{"role": "user", "content": "How many are 12?"}], []))
    return [prompt_token_ids(tokenizer, messages) for messages, _ in asked], [urls for _, urls in asked]


def _errors(name: str, draft: Any, done: Served) -> list[float]:
    """Relative error of what the head reads, for every step of every proposal."""
    found = []
    for proposal in (proposal for request in done.proposals for proposal in request):
        ours = LOOPS[name](draft, proposal.token_ids_S, proposal.aux_states_SAH, proposal.drafts_K.numel())
        found += [relative_error(*pair) for pair in zip(ours.output_KH, proposal.outputs_KH, strict=True)]
    return found


@pytest.mark.parametrize("name", LOOPS)
def test_behind_images_vllm_drafts_as_our_loop_does(served, name: str, record_property):
    draft, done = served[name]
    errors = _errors(name, draft, done)
    record_property("relative_error_max", max(errors))
    assert len(errors) > 60 and max(errors) <= RELATIVE_ERROR_MAX
    propose = algorithms.load(name).propose
    for request in done.proposals:
        whole = request[-1]
        drafts = propose(draft, whole.token_ids_S, whole.aux_states_SAH, whole.drafts_K.numel())
        for proposal in request:
            assert torch.equal(drafts[proposal.aux_states_SAH.shape[0] - 1], proposal.drafts_K)


@pytest.mark.parametrize("name", LOOPS)
def test_replies_about_images_are_the_verifiers_own(served, name: str):
    _, done = served[name]
    assert done.replies == done.plain
    assert len({tuple(reply) for reply in done.plain}) == len(done.plain)


def test_as_it_is_shipped_vllm_loses_its_place_behind_an_image(served):
    """Once this fails, vLLM has mended it and the repair can go."""
    draft, done = served["eagle3_as_shipped"]
    errors = _errors("eagle3", draft, done)
    assert max(errors) > 100 * RELATIVE_ERROR_MAX
    *_, text = done.proposals
    without = Served([text], done.plain, done.replies, done.counters)
    assert max(_errors("eagle3", draft, without)) <= RELATIVE_ERROR_MAX, "a prompt without an image is right"
