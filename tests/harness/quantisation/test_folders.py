"""The quantised verifier's folder and a draft that points at it; the server reads both (test_served.py)."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.errors import UserError
from harness.files import write_json
from harness.quantisation.folders import ignored_module, is_projection, quantise_verifier, redirect_draft
from harness.verifiers.weights import load_weights
from tests import toy

RECORD = {"id": "example/toy", "sha256": "ab" * 32, "provenance": {"scale": "full"}}


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    folder = toy.write_verifier(tmp_path_factory.mktemp("verifier") / "toy")
    write_json(folder / "verifier.json", RECORD)
    return folder


@pytest.fixture(scope="module")
def quantised(verifier):
    out = verifier.parent / "toy_int8"
    quantise_verifier(verifier, "int8", out)
    return out


def test_projections_are_quantised_and_nothing_else(verifier, quantised):
    before, after = load_file(verifier / "model.safetensors"), load_file(quantised / "model.safetensors")
    projections = [name for name in before if "_proj." in name]
    assert len(projections) == 7 * 6
    assert set(after) == set(before) | {f"{name}_scale" for name in projections}
    for name, tensor in before.items():
        if name in projections:
            assert after[name].dtype == torch.int8 and after[f"{name}_scale"].shape == (len(tensor), 1)
            torch.testing.assert_close(after[name].float() * after[f"{name}_scale"], tensor, atol=0.01, rtol=0.1)
        else:
            assert torch.equal(after[name], tensor)


def test_the_record_says_what_was_done_and_how_far_weights_moved(verifier, quantised):
    record = json.loads((quantised / "verifier.json").read_text())
    assert record["source_sha256"] == RECORD["sha256"] and record["sha256"] != RECORD["sha256"]
    assert record["quantised"]["scheme"] == "int8" and record["quantised"]["tensors"] == 42
    assert 0 < record["quantised"]["relative_error_max"] < 0.02
    config = json.loads((quantised / "config.json").read_text())
    assert config.pop("quantization_config")["ignore"] == ["lm_head"]
    assert config == json.loads((verifier / "config.json").read_text())


def test_drafts_still_find_embedding_head_and_norm(verifier, quantised):
    ours, theirs = load_weights(quantised), load_weights(verifier)
    assert torch.equal(ours.head_VH, theirs.head_VH) and torch.equal(ours.final_norm_H, theirs.final_norm_H)


def test_shards_and_their_index_are_kept(verifier, tmp_path):
    tensors = load_file(verifier / "model.safetensors")
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    folder = tmp_path / "sharded"
    folder.mkdir()
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    places = {name: file for file, held in parts.items() for name in held}
    write_json(folder / "model.safetensors.index.json", {"weight_map": places})
    for name in ("config.json", "verifier.json"):
        (folder / name).write_text((verifier / name).read_text())
    quantise_verifier(folder, "fp8", tmp_path / "out")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"]
    for name, file in places.items():
        assert index[name] == file
        assert not is_projection(name, tensors[name]) or index[f"{name}_scale"] == file
    assert torch.equal(load_weights(tmp_path / "out").head_VH, load_weights(verifier).head_VH)


def test_matrices_that_stay_are_listed_so_that_the_server_expects_no_scale():
    gate, table = torch.zeros(4, 8), torch.zeros(16, 8)
    assert ignored_module("model.layers.0.mlp.gate.weight", gate) == "model.layers.0.mlp.gate"
    assert ignored_module("model.embed_tokens.weight", table) is None
    assert ignored_module("model.layers.0.self_attn.q_proj.weight", gate) is None
    assert ignored_module("model.norm.weight", torch.zeros(8)) is None


def test_experts_in_one_tensor_are_refused(verifier, tmp_path):
    folder = tmp_path / "experts"
    folder.mkdir()
    save_file({"model.layers.0.mlp.experts.down_proj": torch.zeros(2, 4, 8)}, folder / "model.safetensors")
    for name in ("config.json", "verifier.json"):
        (folder / name).write_text((verifier / name).read_text())
    with pytest.raises(UserError, match="experts in one tensor are not quantised here"):
        quantise_verifier(folder, "int8", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_quantised_verifier_is_not_quantised_again(quantised, tmp_path):
    with pytest.raises(UserError, match="is quantised already"):
        quantise_verifier(quantised, "int8", tmp_path / "again")


def test_a_folder_of_somebody_else_is_left_alone(verifier, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes.txt, which this step did not write. Fix:"):
        quantise_verifier(verifier, "int8", tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_another_model_is_left_alone(verifier, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"holds config.json, which this step did not write. Fix:"):
        quantise_verifier(verifier, "int8", tmp_path)


def test_a_folder_as_snakemake_leaves_it_is_written(verifier, tmp_path):
    """Empty before the first run; without the declared output before it runs again."""
    out = tmp_path / "out"
    out.mkdir()
    first = quantise_verifier(verifier, "int8", out)
    (out / "verifier.json").unlink()
    assert quantise_verifier(verifier, "int8", out)["sha256"] == first["sha256"]


@pytest.fixture(scope="module")
def draft(verifier):
    return toy.write_draft(
        verifier.parent / "draft", toy.random_draft(load_weights(verifier), speculative_tokens=3), "models/toy"
    )


def test_a_draft_points_at_another_verifier_and_keeps_its_weights(draft, quantised, tmp_path):
    redirect_draft(draft, quantised, tmp_path / "out")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (draft, tmp_path / "out"))
    assert after["speculators_config"]["verifier"].pop("name_or_path") == str(quantised)
    assert before["speculators_config"]["verifier"].pop("name_or_path") == "models/toy"
    assert before == after
    assert (tmp_path / "out" / "model.safetensors").samefile(draft / "model.safetensors")


def test_a_verifier_of_another_shape_is_refused(draft, tmp_path):
    other = toy.write_verifier(tmp_path / "other", hidden_size=96)
    with pytest.raises(UserError, match="hidden_size = 96, the draft was made for 64"):
        redirect_draft(draft, other, tmp_path / "out")
