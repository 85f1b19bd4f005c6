"""No false alarm: drafts of every algorithm in every variant that is served pass lint and come back bit-equal."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import algorithms
from harness.checkpoint import read_checkpoint, write_checkpoint
from harness.checkpoint.examine import examine
from harness.checkpoint.lint import lint
from harness.checkpoint.verifier_facts import read_facts
from harness.verifiers.weights import load_weights
from tests import toy
from tests.harness.checkpoint.drafts import SETTINGS, faults

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
VERIFIERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"kind": "qwen3"},
    "tied": {"tie_word_embeddings": True},
    "yarn": {"rope_parameters": YARN},
    "llama3": {"rope_parameters": LLAMA3},
    "windowed": {"sliding_window": 64},
}
FULL = {"draft_vocab_size": toy.VOCABULARY}
BLOCKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "deep": {"layers": 3},
    "window_causal": {"sliding_window": 8, "causal": True},
    "window_bidirectional": {"sliding_window": 8, "causal": False},
    "full_causal_fewer_tokens": {"causal": True, "speculative_tokens": 2},
    "many_states": {"aux_layers": (0, 1, 2, 3, 6)},
    "one_token": {"block_size": 2, "speculative_tokens": 1},
}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "eagle3": {
        "plain": {},
        "full": FULL,
        "qwen3_deep": {"architecture": "qwen3", "layers": 2},
        "fc_norm": {"norm_before_fc": False, "fc_norm": True, "norm_output": True, "aux_layers": (0, 2, 4, 6)},
        "window": {"sliding_window": 8, "norm_before_residual": False, "aux_layers": (2,)},
        "trained_head": {"train_head": True, "speculative_tokens": 7},
    },
    "peagle": {
        "plain": {},
        "full": FULL,
        "qwen3_deep": {"architecture": "qwen3", "layers": 2, "speculative_tokens": 8},
        "own_embedding": {"train_embedding": True, "norm_before_fc": True},
        "residual": {"norm_before_residual": True, "sliding_window": 8},
    },
    "dflash": BLOCKS | {"full": FULL, "full_deep": FULL | {"layers": 2}},
    "dflash2": {name: settings for name, settings in BLOCKS.items() if name != "one_token"}
    | {
        "taps": {"conv_kernel_size": 3, "conv_group_size": 64},
        "one_token": BLOCKS["one_token"] | {"conv_kernel_size": 2},
    },
    "dspark": {
        "plain": {},
        "full": FULL,
        "anchored": {"sample_from_anchor": False, "block_size": 4},
        "no_confidence": {"confidence_head": False},
        "confidence_alone": {"confidence_head_with_markov": False, "layers": 2},
        "window": {"sliding_window": 8},
        "window_bidirectional": {"sliding_window": 8, "causal": False},
        "full_causal": {"causal": True, "speculative_tokens": 2},
    },
}
CASES = [(algorithm, variant, "llama") for algorithm, table in VARIANTS.items() for variant in table]
CASES += [(algorithm, "plain", verifier) for algorithm in VARIANTS for verifier in VERIFIERS if verifier != "llama"]


@pytest.fixture(scope="module")
def verifiers(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("verifiers")
    return {name: toy.write_verifier(root / name, **settings) for name, settings in VERIFIERS.items()}


def export(verifier: Path, algorithm: str, variant: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    settings = SETTINGS.get(algorithm, {}) | VARIANTS.get(algorithm, {"plain": {}})[variant]
    draft = toy.random_draft(load_weights(verifier), algorithm=algorithm, **settings)
    return algorithms.load(algorithm).export(draft)


def architectures(verifier: Path) -> list[str]:
    return json.loads((verifier / "config.json").read_text())["architectures"]


@pytest.mark.parametrize(("algorithm", "variant", "verifier"), CASES)
def test_a_good_draft_has_no_fault_and_comes_back_bit_equal(verifiers, tmp_path, algorithm, variant, verifier):
    folder = verifiers[verifier]
    content, tensors = export(folder, algorithm, variant)
    write_checkpoint(tmp_path / "draft", content, tensors, "toy/verifier", architectures(folder))
    findings = lint(examine(str(tmp_path / "draft"), read_facts(folder)))
    assert [f for f in findings if f.verdict in ("fault", "not checked")] == []
    config, again = read_checkpoint(tmp_path / "draft")
    write_checkpoint(
        tmp_path / "again", config, again, "toy/verifier", config["speculators_config"]["verifier"]["architectures"]
    )
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "draft" / name).read_bytes()


@pytest.mark.parametrize("algorithm", algorithms.NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_shards_are_good_too(verifiers, tmp_path, algorithm, dtype):
    content, tensors = export(verifiers["llama"], algorithm, "plain")
    halves = {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}
    write_checkpoint(tmp_path, content, halves, "toy/verifier", ["LlamaForCausalLM"])
    names = sorted(halves)
    where = {name: f"model-{1 + place % 3:05}-of-00003.safetensors" for place, name in enumerate(names)}
    stored = load_file(tmp_path / "model.safetensors")
    for file in set(where.values()):
        save_file({name: stored[name] for name in names if where[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    assert faults(lint(examine(str(tmp_path), read_facts(verifiers["llama"])))) == set()
    again = read_checkpoint(tmp_path)[1]
    assert again.keys() == halves.keys()
    assert all(torch.equal(again[name], halves[name]) for name in halves)
