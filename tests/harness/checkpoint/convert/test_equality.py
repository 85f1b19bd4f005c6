"""A converted draft computes what its source does: the source's network in plain PyTorch against the restored draft."""

import dataclasses
import importlib

import pytest
import torch

import algorithms
from algorithms.foreign import Answers
from harness.checkpoint import read_checkpoint
from harness.checkpoint.convert.layouts import LAYOUTS
from harness.checkpoint.convert.run import Request, convert
from harness.verifiers.weights import load_weights
from tests import toy
from tests.harness.checkpoint.convert import foreign_models as foreign

LENGTH = 14
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
CASES = {
    "safeailab": lambda v: foreign.safeailab_eagle3(),
    "safeailab_names_of_layers": lambda v: foreign.safeailab_eagle3(at="layers.0"),
    "safeailab_linear_rope": lambda v: foreign.safeailab_eagle3(rope_scaling={"type": "linear", "factor": 2.0}),
    "specforge_norms": lambda v: foreign.specforge_eagle3(fc_norm=True, norm_output=True),
    "specforge_whole_vocabulary": lambda v: foreign.specforge_eagle3(size=toy.VOCABULARY),
    "specforge_llama3_rope": lambda v: foreign.specforge_eagle3(rope_scaling=LLAMA3),
    "specforge_yarn_rope": lambda v: foreign.specforge_eagle3(rope_scaling=YARN),
    "specforge_own_embedding": lambda v: foreign.specforge_eagle3(own_embedding=True),
    "specforge_attention_bias": lambda v: foreign.specforge_eagle3(bias=True, attention_bias=True),
    "specforge_fused": lambda v: foreign.fused(foreign.specforge_eagle3()),
    "deepspec_eagle3": foreign.deepspec_eagle3,
    "specforge_parallel": lambda v: foreign.specforge_peagle(),
    "zlab": lambda v: foreign.zlab_dflash(),
    "zlab_causal": lambda v: foreign.zlab_dflash(is_causal=True),
    "zlab_window": lambda v: foreign.zlab_dflash(kind="sliding", sliding_window=6),
    "zlab_window_bidirectional": lambda v: foreign.zlab_dflash(kind="sliding", sliding_window=6, is_causal=False),
    "zlab_part_of_the_vocabulary": lambda v: foreign.zlab_dflash(size=96),
    "zlab_fused": lambda v: foreign.fused(foreign.zlab_dflash()),
    "zlab_second": lambda v: foreign.zlab_dflash2(),
    "deepspec_dspark": foreign.deepspec_block,
    "deepspec_dflash": lambda v: foreign.deepspec_block(v, rank=0, confidence=False),
    "specforge_dspark_causal": lambda v: foreign.specforge_dspark(),
    "specforge_dspark": lambda v: foreign.specforge_dspark(size=toy.VOCABULARY, causal_rows=False),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toy.write_verifier(tmp_path_factory.mktemp("verifier"))


def converted(source: foreign.Foreign, place, verifier_folder, form="safetensors"):
    """The restored draft in float32 and what the conversion said."""
    path = source.write(place / "source", form)
    answers = Answers(**source.answers)
    done = convert(Request(str(path), str(verifier_folder), place / "out", answers, verifier_name="models/toy"))
    content, tensors = read_checkpoint(place / "out")
    tensors = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
    weights = load_weights(verifier_folder)
    weights = dataclasses.replace(weights, embedding_VH=weights.embedding_VH.float(), head_VH=weights.head_VH.float())
    return algorithms.load(done.layout.becomes).restore(content, tensors, weights), done, content


def steps_of(algorithm: str):
    module = importlib.import_module(f"algorithms.{algorithm}.drafting")
    return getattr(module, "draft_steps", None) or module.draft_block


def check_equal(source: foreign.Foreign, draft, done, verifier) -> None:
    generator = torch.Generator().manual_seed(5)
    for length in (LENGTH, LENGTH + 3):
        tokens = torch.randint(0, 256, (length,), generator=generator)
        states = torch.randn(length - 1, len(source.aux), foreign.H, generator=generator)
        logits, drafted = source.drafts(verifier, tokens, states)
        found = steps_of(done.layout.becomes)(draft, tokens, states, source.tokens)
        assert ((found.logits_KD - logits).norm() / logits.norm()).item() < 1e-5
        assert torch.equal(found.token_ids_K, drafted)


@pytest.mark.parametrize("case", CASES)
def test_a_converted_draft_has_its_sources_logits_and_drafts(case, folder, tmp_path):
    verifier = load_weights(folder)
    source = CASES[case](verifier)
    draft, done, content = converted(source, tmp_path, folder)
    assert done.layout.name == source.layout
    kind = algorithms.load(done.layout.becomes)
    assert tuple(kind.aux_layers(content)) == source.aux
    assert content["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == source.tokens
    check_equal(source, draft, done, verifier)


def test_the_cases_are_of_every_layout_that_becomes_a_checkpoint(folder):
    verifier = load_weights(folder)
    assert {make(verifier).layout for make in CASES.values()} == {n for n, row in LAYOUTS.items() if not row.native}


@pytest.mark.parametrize("form", ["sharded safetensors", "bin", "sharded bin"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_files_and_dtypes_change_nothing(form, dtype, folder, tmp_path):
    source = foreign.specforge_eagle3(own_embedding=True)
    source.tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in source.tensors.items()}
    draft, done, _ = converted(source, tmp_path, folder, form)
    check_equal(source, draft, done, load_weights(folder))
    _, tensors = read_checkpoint(tmp_path / "out")
    assert {t.dtype for t in tensors.values() if t.is_floating_point()} == {dtype}


def test_a_head_tied_to_the_drafts_own_embedding_is_written_out(folder, tmp_path):
    source = foreign.specforge_eagle3(size=toy.VOCABULARY, own_embedding=True, tie_word_embeddings=True)
    source.tensors["lm_head.weight"] = source.tensors["embed_tokens.weight"]
    untied = dataclasses.replace(source, tensors=dict(source.tensors))
    del source.tensors["lm_head.weight"]
    draft, done, _ = converted(source, tmp_path, folder)
    assert done.report["made"]["lm_head.weight"].startswith("the embedding once more")
    check_equal(untied, draft, done, load_weights(folder))


def test_a_verifier_with_tied_tables_gives_a_draft_both(tmp_path):
    folder = toy.write_verifier(tmp_path / "verifier", tie_word_embeddings=True)
    verifier = load_weights(folder)
    source = foreign.deepspec_block(verifier)
    draft, done, _ = converted(source, tmp_path, folder)
    left = {name for name, went in done.report["tensors"].items() if "left_out" in went}
    assert left == {"embed_tokens.weight", "lm_head.weight"}
    check_equal(source, draft, done, verifier)
