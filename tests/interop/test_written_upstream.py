"""Checkpoints as the reference trainer itself makes them, from its own defaults: read, linted, drafted from.

No false alarm on them, but for the one thing that it writes wrongly: full attention with its default causality flag.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import algorithms
from harness.checkpoint.examine import examine
from harness.checkpoint.lint import lint
from harness.checkpoint.reading import in_memory, open_checkpoint
from harness.checkpoint.verifier_facts import read_facts
from harness.verifiers.weights import load_weights
from tests import toy
from tests.interop import upstream

pytestmark = pytest.mark.slow

LAYER_IDS = [1, 3, 5]
WINDOW = 2048  # its default
BLOCK = {"block_size": 8, "mask_token_id": upstream.MASK_TOKEN_ID}
SMALL = {"selector_rank": 8, "selector_top_k": 4, "markov_rank": 8}  # as its default sizes suit large models
NORMS = {"ttt_steps": 3, "norm_before_residual": True}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 128}  # fmt: skip
# (algorithm, its draft architecture, layers, indices of full attention, its arguments, the verifier's config)
CASES: dict[str, tuple[str, str, int, list[int], dict[str, Any], dict[str, Any]]] = {
    "eagle3": ("eagle3", "llama", 1, [], NORMS | {"norm_before_fc": True, "norm_output": True}, {}),
    "eagle3 qwen3 full": ("eagle3", "qwen3", 2, [0, 1], NORMS | {"fc_norm": True}, {"rope_parameters": YARN}),
    "eagle3 full vocabulary": ("eagle3", "llama", 1, [0], NORMS | {"draft_vocab_size": toy.VOCABULARY}, {}),
    "peagle": ("peagle", "llama", 2, [0, 1], {"mask_token_id": upstream.MASK_TOKEN_ID}, {"rope_parameters": LLAMA3}),
    "dflash": ("dflash", "qwen3", 2, [], BLOCK, {}),
    "dflash bidirectional": ("dflash", "qwen3", 1, [0], BLOCK | {"sliding_window_non_causal": True}, {}),
    "dflash2": ("dflash2", "qwen3", 1, [], BLOCK | SMALL | {"draft_vocab_size": toy.VOCABULARY}, {}),
    "dspark": ("dspark", "qwen3", 1, [], BLOCK | SMALL, {}),
    "dspark full": ("dspark", "qwen3", 1, [0], BLOCK | SMALL | {"sample_from_anchor": False}, {}),
}


def write(root: Path, case: tuple[str, str, int, list[int], dict[str, Any], dict[str, Any]]) -> tuple[Path, Path]:
    """(draft, verifier) folders; the draft's weights are drawn at random."""
    from speculators.model import SpeculatorModel
    from speculators.train.cli import create_transformer_layer_config

    algorithm, architecture, layers, full, arguments, changes = case
    verifier = toy.write_verifier(root / "verifier", **changes)
    layer = create_transformer_layer_config("verifier", layers, architecture, None, WINDOW, full)
    said = {"draft_vocab_size": 96, "verifier_name_or_path": "verifier", "target_layer_ids": LAYER_IDS} | arguments
    kept = toy.draft_vocabulary(said["draft_vocab_size"])
    tables: dict[str, Any] = {"t2d": None, "d2t": None}
    if len(kept) < toy.VOCABULARY:
        marks = torch.zeros(toy.VOCABULARY, dtype=torch.bool).index_fill(0, kept, True)
        tables = {"t2d": marks, "d2t": kept - torch.arange(len(kept))}
    kind = SpeculatorModel.registry[algorithm]
    model = kind.from_training_args(copy.deepcopy(layer), **tables, draft_attn_impl="eager", **said)
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = 0.1 * torch.randn(weight.shape, generator=generator) + (weight.ndim == 1)
    model.save_pretrained(root / "draft")
    return root / "draft", verifier


@pytest.mark.parametrize("case", CASES)
def test_what_upstream_makes_has_no_fault_and_drafts(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    draft, verifier = write(tmp_path, CASES[case])
    findings = lint(examine(str(draft), read_facts(verifier)))
    assert [f for f in findings if f.verdict in ("fault", "not checked")] == []
    config, stored = open_checkpoint(draft)
    kind = algorithms.load(config["speculators_model_type"])
    ours = kind.restore(config, in_memory(stored), load_weights(verifier))
    exported = kind.export(ours)[1]
    again = in_memory(stored)
    assert all(torch.equal(exported[name], again[name]) for name in exported.keys() & again.keys())
    assert again.keys() - exported.keys() <= kind.format.optional_tensors(config).keys()
    drafts = kind.propose(ours, torch.arange(9), torch.randn(8, 3, 64), 3)
    assert drafts.shape == (8, 3) and int(drafts.max()) < toy.VOCABULARY


def test_full_attention_with_upstreams_default_flag_is_the_fault_that_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draft, verifier = write(tmp_path, ("dflash", "qwen3", 1, [0], BLOCK, {}))
    findings = lint(examine(str(draft), read_facts(verifier)))
    assert [f.rule for f in findings if f.verdict == "fault"] == ["block-causality"]
