"""vLLM's own config classes parse every file that we write, and build the speculative config that we mean.

Both ways of serving: by the draft's folder alone, and beside a verifier with a method read from the path.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import algorithms
from algorithms.exporting import speculative_tokens
from harness.checkpoint.config_rules import guessed_method
from harness.checkpoint.reading import read_checkpoint
from tests import toy
from tests.harness.checkpoint.drafts import MASK, write_draft
from tests.interop.serving import REPOSITORY, needs_cpu_build

pytestmark = [pytest.mark.slow, needs_cpu_build]

# Folder -> (algorithm, settings), in folders whose names say nothing, or something else.
DRAFTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a": ("eagle3", {}),
    "b-dflash": ("eagle3", {"norm_before_fc": False, "fc_norm": True, "norm_output": True, "aux_layers": (0, 2, 4, 6)}),
    "c": ("eagle3", {"architecture": "qwen3", "layers": 2, "draft_vocab_size": toy.VOCABULARY}),
    "my-eagle-run": ("peagle", {"speculative_tokens": 5}),
    "e": ("peagle", {"architecture": "qwen3", "norm_before_fc": True}),
    "f-eagle3": ("dflash", {}),
    "g": ("dflash", {"causal": True, "sliding_window": 8, "layers": 2}),
    "h": ("dflash2", {}),
    "i": ("dspark", {}),
    "j": ("dspark", {"sample_from_anchor": False, "block_size": 4, "confidence_head": False}),
}
ARCHITECTURES = {
    "eagle3": {"llama": "Eagle3LlamaForCausalLM", "qwen3": "Eagle3Qwen3ForCausalLM"},
    "peagle": {"llama": "PeagleLlamaForCausalLM", "qwen3": "PeagleQwen3ForCausalLM"},
    "dflash": {"qwen3": "DFlashDraftModel"},
    "dflash2": {"qwen3": "DFlash2DraftModel"},
    "dspark": {"qwen3": "Qwen3DSparkModel"},
}
# Copies of the draft of EAGLE-3, passed by hand without a method.
PATHS = ("my-eagle3-copy", "some_dflash_run", "plain")


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """(root, what the engine's configs became)."""
    root = tmp_path_factory.mktemp("configs")
    verifier = toy.write_verifier(root / "toy" / "verifier")
    for folder, (algorithm, settings) in DRAFTS.items():
        write_draft(root / folder, verifier, algorithm, **settings)
    for path in PATHS:
        shutil.copytree(root / "a", root / path)
    runners = {folder: algorithms.engine_runner(algorithm) for folder, (algorithm, _) in DRAFTS.items()}
    by_hand = [["toy/verifier", path, 3] for path in PATHS]
    (root / "job.json").write_text(json.dumps({"drafts": runners, "by_hand": by_hand}))
    done = subprocess.run(
        [sys.executable, "-m", "tests.interop.read_configs", "job.json"],
        cwd=root, env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return root, json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("folder", DRAFTS)
def test_the_draft_served_by_its_path_becomes_what_it_was_trained_as(said, folder):
    algorithm = DRAFTS[folder][0]
    root, found = said[0], said[1]["drafts"][folder]
    config = read_checkpoint(root / folder)[0]
    kind, tokens = algorithms.load(algorithm), speculative_tokens(config)
    assert (found["model"], found["tokenizer"], found["served_model"]) == ("toy/verifier",) * 3
    assert (found["method"], found["tokens"], found["draft"]) == (kind.engine_method, tokens, folder)
    assert found["speculative"]["method"] == kind.engine_method
    assert found["parallel"] == ("mask_token_id" in config)
    assert found["architectures"] == [ARCHITECTURES[algorithm][config["transformer_layer_config"]["model_type"]]]


@pytest.mark.parametrize("folder", DRAFTS)
def test_every_key_arrives_where_the_engine_reads_it(said, folder):
    root, found = said[0], said[1]["drafts"][folder]["parsed"]
    config = read_checkpoint(root / folder)[0]
    ids = algorithms.load(DRAFTS[folder][0]).aux_layers(config)
    assert found["eagle_aux_hidden_state_layer_ids"] == ids
    layer = config["transformer_layer_config"]
    for key in ("hidden_size", "head_dim", "vocab_size", "max_position_embeddings", "layer_types", "hidden_act"):
        assert found[key] == layer[key], key
    assert found["rope_parameters"] == layer["rope_parameters"]
    for key in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "draft_vocab_size"):
        if key in config and key in found:
            assert found[key] == config[key], key
    if "mask_token_id" in config:
        block = found.get("dflash_config", {})
        assert MASK in (found.get("pard_token"), found.get("mask_token_id"), block.get("mask_token_id"))
    if "dflash_config" in found:
        assert found["dflash_config"]["target_layer_ids"] == [i - 1 for i in ids]
        assert found["dflash_config"]["causal"] is not config["sliding_window_non_causal"]


@pytest.mark.parametrize("path", PATHS)
def test_by_hand_the_method_is_read_from_the_path_as_the_linter_says(said, path):
    assert said[1]["by_hand"][path] == (guessed_method(path) or "draft_model")
