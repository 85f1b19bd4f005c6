"""Reading another project's files: every form of them, and never more than tensors."""

import json

import pytest
import torch

from harness.checkpoint.convert import source as sources
from harness.checkpoint.convert.source import open_source, verifier_folder
from harness.errors import UserError
from tests.harness.checkpoint.convert import foreign_models as foreign


class Marker:
    """A pickled object whose loading would write a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("form", ["safetensors", "sharded safetensors", "bin", "sharded bin"])
def test_every_form_gives_the_same_tensors_and_a_hash_of_every_file(form, tmp_path):
    made = foreign.specforge_eagle3()
    folder = made.write(tmp_path / "draft", form)
    source = open_source(str(folder))
    assert source.tensors.keys() == made.tensors.keys()
    assert all(torch.equal(source.tensors[name], tensor) for name, tensor in made.tensors.items())
    assert source.files.keys() == {path.name for path in folder.iterdir()}
    assert source.name == "draft" and source.revision is None and not source.left_aside


def test_safetensors_win_over_a_pickle_that_is_not_opened(tmp_path):
    folder = foreign.specforge_eagle3().write(tmp_path / "draft")
    torch.save({"a": Marker(tmp_path / "ran")}, folder / "pytorch_model.bin")
    assert open_source(str(folder)).left_aside == ["pytorch_model.bin"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", ["object", "nested", "list"])
def test_a_pickle_of_more_than_tensors_is_refused_and_runs_nothing(content, tmp_path):
    folder = foreign.specforge_eagle3().write(tmp_path / "draft", "bin")
    tensor = torch.ones(2)
    held = {"object": {"a": Marker(tmp_path / "ran")}, "nested": {"state_dict": {"a": tensor}}, "list": [tensor]}
    torch.save(held[content], folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="more than tensors") as caught:
        open_source(str(folder))
    assert "\n" not in str(caught.value) and not (tmp_path / "ran").exists()


def test_a_damaged_file_and_a_lost_shard_are_named(tmp_path):
    for form, file in (("bin", "pytorch_model.bin"), ("safetensors", "model.safetensors")):
        folder = foreign.specforge_eagle3().write(tmp_path / form, form)
        (folder / file).write_bytes(b"not one")
        with pytest.raises(UserError, match=f"{file}: damaged"):
            open_source(str(folder))
    folder = foreign.specforge_eagle3().write(tmp_path / "sharded", "sharded safetensors")
    lost = next(folder.glob("model-00002*"))
    lost.unlink()
    with pytest.raises(UserError, match=f"{lost.name}: no such file"):
        open_source(str(folder))


def test_an_index_that_leads_out_of_the_folder_or_disagrees_with_the_shards_is_refused(tmp_path):
    folder = foreign.specforge_eagle3().write(tmp_path / "draft", "sharded safetensors")
    index = folder / "model.safetensors.index.json"
    where = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": where | {"norm.weight": "../other.safetensors"}}))
    with pytest.raises(UserError, match="no weight_map over files of this folder"):
        open_source(str(folder))
    index.write_text(json.dumps({"weight_map": where | {"extra.weight": where["norm.weight"]}}))
    with pytest.raises(UserError, match=r"differ in extra\.weight"):
        open_source(str(folder))


def test_a_folder_without_weights_and_a_separate_mask_embedding_are_refused(tmp_path):
    folder = foreign.zlab_dflash().write(tmp_path / "draft")
    (folder / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(UserError, match=r"mask_embedding\.pt: a separate embedding"):
        open_source(str(folder))
    (folder / "mask_embedding.pt").unlink()
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weights"):
        open_source(str(folder))


def test_what_is_neither_a_folder_nor_on_the_hub_is_said_so(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("someone/draft", str(tmp_path / "nowhere")):
        with pytest.raises(UserError, match=r"HF_HUB_OFFLINE is set|no such folder, and no hub id"):
            open_source(name)
    with pytest.raises(UserError, match=r"^none: no such folder, and no hub id\. Fix: give a folder on this"):
        open_source("none")


def test_of_a_verifier_on_the_hub_only_the_shards_with_its_tables_and_final_norm_are_fetched(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(sources, "_download", lambda name, revision, patterns: asked.append(patterns) or tmp_path)
    where = {
        "model.embed_tokens.weight": "a", "model.layers.0.input_layernorm.weight": "b", "model.norm.weight": "c",
        "model.layers.1.self_attn.k_norm.weight": "d", "lm_head.weight": "a",
    }  # fmt: skip
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    assert verifier_folder("someone/model") == tmp_path
    assert "*.json" in asked[0] and asked[1] == ("a", "c")
    index.unlink()
    verifier_folder("someone/model")
    assert asked[-1] == ("model.safetensors",)
