"""vLLM on CPU drafts from a converted draft what the source's network drafts, and replies as plain decoding does."""

import json

import pytest
import torch

from algorithms.foreign import Answers
from harness.checkpoint.convert.run import Request, convert
from harness.verifiers.weights import load_weights
from tests import toy
from tests.harness.checkpoint.convert import foreign_models as foreign
from tests.interop.serving import RECORDERS, Served, needs_cpu_build, serve_drafts

pytestmark = [pytest.mark.slow, needs_cpu_build]

MAX_TOKENS, PROMPT_LENGTHS = 16, (23, 40)
# Runner, layout of the source, and the class and method that vLLM makes of it.
CASES = {
    "any": {
        "safeailab-eagle3": ("Eagle3LlamaForCausalLM", "eagle3"),
        "deepspec-eagle3": ("Eagle3Qwen3ForCausalLM", "eagle3"),
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
        foreign.deepspec_eagle3(verifier),
        foreign.zlab_dflash(),
        foreign.safeailab_eagle(verifier, layers=2),
        foreign.deepspec_block(verifier),
        foreign.deepspec_block(verifier, rank=0, confidence=False),
    )
    return {source.layout: source for source in made}


class Converted:
    """Sources and their checkpoints in one folder, served a runner at a time when a test asks."""

    def __init__(self, root):
        self.root = root
        folder = toy.write_verifier(root / "verifier")
        self.verifier, self.native, self._served = load_weights(folder), {}, {}
        self.sources = sources(self.verifier)
        for name, source in self.sources.items():
            path = source.write(root / f"{name}.source", "sharded bin")
            request = Request(str(path), str(folder), root / name, Answers(**source.answers), verifier_name="verifier")
            done = convert(request)
            if done.layout.native:
                self.native[name] = json.loads(done.command.split("--speculative-config ")[1].strip("'"))

    def served(self, runner: str) -> dict[str, Served]:
        if runner not in self._served:
            generator = torch.Generator().manual_seed(11)
            prompts = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]
            counts = {name: max(1, len(self.sources[name].aux)) for name in CASES[runner]}
            recorder = RECORDERS[runner]
            self._served[runner] = serve_drafts(
                self.root, "verifier", prompts, MAX_TOKENS, counts, True, recorder, self.native
            )
        return self._served[runner]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    return Converted(tmp_path_factory.mktemp("served"))


@pytest.mark.parametrize(("runner", "layout"), [(runner, name) for runner, cases in CASES.items() for name in cases])
def test_a_converted_draft_is_served_as_its_source_drafts(runner, layout, converted):
    source, done = converted.sources[layout], converted.served(runner)[layout]
    assert done.replies == done.plain
    compared = 0
    for proposal in (proposal for request in done.proposals for proposal in request):
        logits, drafted = source.drafts(converted.verifier, proposal.token_ids_S, proposal.aux_states_SAH)
        assert torch.equal(proposal.drafts_K, drafted)
        if layout == "safeailab-eagle":  # no draft of this project's to compare its logits with
            found = proposal.outputs_KH @ converted.verifier.head_VH.T
            assert ((found - logits).norm() / logits.norm()).item() < 1e-4
        compared += drafted.numel()
    assert compared >= 2 * source.tokens * (MAX_TOKENS // (source.tokens + 1))
    architecture, method = CASES[runner][layout]
    assert done.counters["architectures"] == [architecture] and done.counters["method"] == method
    assert done.counters["num_speculative_tokens"] == source.tokens
