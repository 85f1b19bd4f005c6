"""`diff`: what two drafts differ in, by key and by tensor."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.checkpoint.diff import compare, differing_keys
from tests.harness.checkpoint import drafts


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> drafts.Sound:
    return drafts.sound(tmp_path_factory.mktemp("diff"), "eagle3")


@pytest.fixture
def other(sound, tmp_path) -> Path:
    """A copy to be changed."""
    (tmp_path / "config.json").write_bytes((sound.draft / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((sound.draft / "model.safetensors").read_bytes())
    return tmp_path


def test_equal_drafts_exit_0(sound, other, checkpoint, capsys):
    assert checkpoint("diff", sound.draft, other) == 0
    assert "the same config and" in capsys.readouterr().out
    assert compare(sound.draft, other)["weights_of_equal_hash"]


def test_keys_tensors_shapes_dtypes_and_the_largest_difference_are_told(sound, other, checkpoint, capsys):
    config = json.loads((other / "config.json").read_text())
    config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 5
    del config["norm_output"]
    (other / "config.json").write_text(json.dumps(config))
    tensors = load_file(other / "model.safetensors")
    tensors["norm.weight"][3] += 0.25
    tensors["fc.weight"] = tensors["fc.weight"][:, :64].contiguous()
    tensors["d2t"] = tensors["d2t"].int()
    tensors["new"] = tensors.pop("t2d")
    save_file(tensors, other / "model.safetensors")
    assert checkpoint("diff", sound.draft, other, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["config"] == {
        "norm_output": [False, "(absent)"],
        "speculators_config.proposal_methods.0.speculative_tokens": [3, 5],
    }
    assert found["tensors"] == {
        "norm.weight": {"max_abs_difference": pytest.approx(0.25)},
        "fc.weight": {"shape": [[64, 192], [64, 64]]},
        "d2t": {"dtype": ["int64", "int32"]},
        "t2d": {"only_in": "a"},
        "new": {"only_in": "b"},
    }
    assert not found["weights_of_equal_hash"]


def test_nan_differs_from_numbers_and_not_from_nan(sound, other):
    tensors = load_file(other / "model.safetensors")
    tensors["norm.weight"][0] = float("nan")
    save_file(tensors, other / "model.safetensors")
    assert compare(sound.draft, other)["tensors"] == {"norm.weight": {"max_abs_difference": "infinite"}}
    assert compare(other, other)["tensors"] == {}


def test_lists_of_numbers_are_one_value():
    a, b = {"ids": [1, 2], "deep": [{"k": 1}]}, {"ids": [1, 3], "deep": [{"k": 1}, {"k": 2}]}
    assert differing_keys(a, b) == {"ids": ([1, 2], [1, 3]), "deep.1.k": ("(absent)", 2)}
    assert differing_keys(a, a) == {}


def test_the_sum_of_all_blocks_is_looked_at(sound, other, monkeypatch):
    monkeypatch.setattr("harness.checkpoint.stored.BLOCK_VALUES", 100)
    tensors = load_file(other / "model.safetensors")
    tensors["fc.weight"][-1, -1] += 1
    save_file(tensors, other / "model.safetensors")
    assert compare(sound.draft, other)["tensors"] == {"fc.weight": {"max_abs_difference": pytest.approx(1.0)}}
    assert torch.isfinite(tensors["fc.weight"]).all()
