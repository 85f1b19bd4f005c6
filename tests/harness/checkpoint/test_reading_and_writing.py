"""Draft folders on disk: written whole and sound, read back equal, refused with one line when damaged."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import algorithms
from harness.checkpoint import read_checkpoint, write_checkpoint
from harness.errors import UserError
from harness.verifiers.weights import load_weights
from tests import toy

EXPORT = algorithms.load("eagle3").export


@pytest.fixture(scope="module")
def verifier(tmp_path_factory) -> Path:
    return toy.write_verifier(tmp_path_factory.mktemp("verifier"))


@pytest.fixture
def draft(verifier):
    return toy.random_draft(load_weights(verifier))


@pytest.fixture
def folder(draft, tmp_path) -> Path:
    return toy.write_draft(tmp_path / "draft", draft, "models/toy")


def test_config_and_tensors_come_back_as_they_were_written(draft, folder):
    config, tensors = read_checkpoint(folder)
    content, exported = EXPORT(draft)
    verifier = config["speculators_config"].pop("verifier")
    assert config == content
    assert verifier == {"name_or_path": "models/toy", "architectures": ["LlamaForCausalLM"]}
    assert tensors.keys() == exported.keys()
    assert all(torch.equal(tensors[name], exported[name]) for name in exported)


def test_the_restored_draft_proposes_what_the_trained_one_did(draft, folder, verifier):
    kind = algorithms.load("eagle3")
    restored = kind.restore(*read_checkpoint(folder), load_weights(verifier))
    tokens, states = torch.randint(0, toy.VOCABULARY, (12,)), torch.randn(11, 3, 64)
    assert torch.equal(kind.propose(restored, tokens, states, 3), kind.propose(draft, tokens, states, 3))


def test_dtypes_are_kept(draft, tmp_path):
    content, tensors = EXPORT(draft.to(torch.bfloat16))
    write_checkpoint(tmp_path / "draft", content, tensors, "models/toy")
    written = load_file(tmp_path / "draft" / "model.safetensors")
    assert written["fc.weight"].dtype == torch.bfloat16
    assert written["d2t"].dtype == torch.int64


def test_only_what_the_server_reads_is_written(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((folder / "config.json").read_text())
    assert "model_type" not in config and "auto_map" not in config
    assert config["speculators_config"]["proposal_methods"] == [{"proposal_type": "greedy", "speculative_tokens": 3}]
    assert config["speculators_config"]["default_proposal_method"] == "greedy"


def test_one_draft_gives_the_same_bytes_twice(draft, folder, tmp_path):
    again = toy.write_draft(tmp_path / "again", draft, "models/toy")
    for name in ("config.json", "model.safetensors"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_a_verifier_path_of_this_machine_is_refused_and_nothing_is_written(draft, tmp_path):
    with pytest.raises(ValueError, match="verifier-path"):
        toy.write_draft(tmp_path / "draft", draft, str(tmp_path / "verifier"))
    assert not (tmp_path / "draft").exists()


def test_a_reduced_vocabulary_without_its_table_is_neither_written_nor_read(draft, folder, tmp_path):
    content, tensors = EXPORT(draft)
    del tensors["d2t"]
    with pytest.raises(ValueError, match="missing: d2t"):
        write_checkpoint(tmp_path / "other", content, tensors, "models/toy")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match="missing-tensors: missing: d2t"):
        read_checkpoint(folder)


def test_a_failed_write_leaves_the_earlier_checkpoint(draft, folder):
    before = (folder / "model.safetensors").read_bytes()
    content, tensors = EXPORT(draft)
    tensors["norm.weight"] = torch.full_like(tensors["norm.weight"], float("nan"))
    with pytest.raises(ValueError, match="finite-values"):
        write_checkpoint(folder, content, tensors, "models/toy")
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == ["draft"]


def shard(folder: Path) -> dict[str, str]:
    """Cut the single file in two and write the index; returns its weight map."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    where = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in names if where[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    write_index(folder, where)
    return where


def write_index(folder: Path, where: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def test_shards_read_as_one_file_does(folder):
    whole = read_checkpoint(folder)[1]
    shard(folder)
    parts = read_checkpoint(folder)[1]
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_lost_shard_is_named(folder):
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match=r"model-00002-of-00002\.safetensors: no such file. Fix: copy every shard"):
        read_checkpoint(folder)


def test_a_shard_without_its_tensor_is_named(folder):
    where = shard(folder)
    write_index(folder, where | {"fc.weight": next(f for f in where.values() if f != where["fc.weight"])})
    with pytest.raises(UserError, match=r"fc.weight is not in"):
        read_checkpoint(folder)


def test_an_index_that_leads_out_of_the_folder_is_refused(folder):
    where = shard(folder)
    write_index(folder, where | {"fc.weight": "../elsewhere.safetensors"})
    with pytest.raises(UserError, match="is not a file name"):
        read_checkpoint(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "not json"])
def test_a_damaged_config_is_one_line(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json: (not JSON|holds a list).*Fix:") as caught:
        read_checkpoint(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept_bytes", [0, 4, 100, 5000])
def test_weights_cut_off_are_one_line(folder, kept_bytes):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(UserError, match=r"model\.safetensors: damaged"):
        read_checkpoint(folder)


def test_pickled_weights_are_not_opened(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="convert the weights to safetensors"):
        read_checkpoint(folder)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        read_checkpoint(tmp_path / "nothing")
