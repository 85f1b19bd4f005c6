"""vLLM on CPU drafts from a converted draft what the source's network drafts, and replies as plain decoding does."""

import json

import pytest
import torch

from algorithms.foreign import Answers
from harness.checkpoint.convert.run import Request, convert
from harness.verifiers.weights import load_weights
from tests import toy
from tests.harness.checkpoint.convert import foreign_models as foreign
from tests.interop.serving import RECORDERS, needs_cpu_build, serve_drafts

pytestmark = [pytest.mark.slow, needs_cpu_build]

MAX_TOKENS, PROMPT_LENGTHS = 24, (23, 40)
# Runner, layout of the source, and the class and method that vLLM makes of it.
CASES = {
    "any": {
        "safeailab-eagle3": ("Eagle3LlamaForCausalLM", "eagle3"),
        "z-lab-dflash": ("DFlashDraftModel", "dflash"),
        "safeailab-eagle": ("EagleLlamaForCausalLM", "eagle"),
    },
    "second": {
        "deepspec-dspark": ("Qwen3DSparkModel", "dspark"),
        "deepspec-dflash": ("Qwen3DSparkModel", "dspark"),
    },
}


def sources(verifier) -> dict[str, foreign.Foreign]:
    made = (
        foreign.safeailab_eagle3(),
        foreign.zlab_dflash(),
        foreign.safeailab_eagle(verifier, layers=2),
        foreign.deepspec_block(verifier),
        foreign.deepspec_block(verifier, rank=0, confidence=False),
    )
    return {source.layout: source for source in made}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    folder = toy.write_verifier(root / "verifier")
    verifier, native = load_weights(folder), {}
    made = sources(verifier)
    for name, source in made.items():
        path = source.write(root / f"{name}.source", "sharded bin")
        request = Request(str(path), str(folder), root / name, Answers(**source.answers), verifier_name="verifier")
        done = convert(request)
        if done.layout.native:
            native[name] = json.loads(done.command.split("--speculative-config ")[1].strip("'"))
    generator = torch.Generator().manual_seed(11)
    prompts = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]
    found = {}
    for runner, cases in CASES.items():
        counts = {name: max(1, len(made[name].aux)) for name in cases}
        found |= serve_drafts(root, "verifier", prompts, MAX_TOKENS, counts, True, RECORDERS[runner], native)
    return verifier, made, found


@pytest.mark.parametrize("layout", [name for cases in CASES.values() for name in cases])
def test_a_converted_draft_is_served_as_its_source_drafts(layout, served):
    verifier, made, found = served
    source, done = made[layout], found[layout]
    assert done.replies == done.plain
    compared = 0
    for proposal in (proposal for request in done.proposals for proposal in request):
        _, drafted = source.drafts(verifier, proposal.token_ids_S, proposal.aux_states_SAH)
        assert torch.equal(proposal.drafts_K, drafted)
        compared += drafted.numel()
    assert compared >= 2 * source.tokens * (MAX_TOKENS // (source.tokens + 1))
    architecture, method = {name: row for cases in CASES.values() for name, row in cases.items()}[layout]
    assert done.counters["architectures"] == [architecture] and done.counters["method"] == method
    assert done.counters["num_speculative_tokens"] == source.tokens
