"""Embedding, head and final norm from one file, from shards, tied, nested; every lack is named."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.errors import UserError
from harness.verifiers.weights import load_weights, verifier_config
from tests import toy

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


def change_config(folder, **changes):
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(content))
    return content


def change_tensors(folder, drop=(), **changes):
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: changes.get(name, tensor) for name, tensor in tensors.items() if name not in drop},
        folder / "model.safetensors",
    )


def shard(folder):
    """The same weights in two files behind an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    table = {name: file for file, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_three_tensors_are_read_in_the_dtype_of_the_file(tmp_path, sharded, dtype):
    toy.write_verifier(tmp_path, dtype=dtype)
    wanted = load_file(tmp_path / "model.safetensors")
    if sharded:
        shard(tmp_path)
    found = load_weights(tmp_path)
    for tensor, name in ((found.embedding_VH, EMBEDDING), (found.head_VH, HEAD), (found.final_norm_H, NORM)):
        assert tensor.dtype == dtype
        assert torch.equal(tensor, wanted[name])
    assert found.config["hidden_size"] == 64


def test_a_tied_head_is_the_embedding(tmp_path):
    toy.write_verifier(tmp_path, tie_word_embeddings=True)
    found = load_weights(tmp_path)
    assert found.head_VH is found.embedding_VH


def test_a_stale_head_in_the_file_of_a_tied_verifier_is_not_used(tmp_path):
    toy.write_verifier(tmp_path)
    change_config(tmp_path, tie_word_embeddings=True)
    found = load_weights(tmp_path)
    assert found.head_VH is found.embedding_VH


def test_a_nested_text_model_is_opened_and_its_own_norm_is_taken(tmp_path):
    toy.write_verifier(tmp_path)
    inner = json.loads((tmp_path / "config.json").read_text())
    del inner["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "outer", "tie_word_embeddings": False, "text_config": inner})
    )
    tensors = load_file(tmp_path / "model.safetensors")
    nested = {name.replace("model.", "model.language_model."): tensor for name, tensor in tensors.items()}
    save_file(nested | {"model.visual.norm.weight": torch.zeros(8)}, tmp_path / "model.safetensors")
    found = load_weights(tmp_path)
    assert found.config == inner | {"tie_word_embeddings": False}
    assert torch.equal(found.embedding_VH, tensors[EMBEDDING]) and torch.equal(found.final_norm_H, tensors[NORM])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json: no such file"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json: not JSON"),
        (
            lambda folder: (folder / "config.json").write_text("{}"),
            "holds no hidden_size, vocab_size, num_hidden_layers",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors: no such file"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"broken"), "model.safetensors: damaged"),
        (lambda folder: change_tensors(folder, drop=[EMBEDDING]), "wanted one tensor embed_tokens.weight, found none"),
        (lambda folder: change_tensors(folder, drop=[HEAD]), "wanted one tensor lm_head.weight, found none"),
        (lambda folder: change_tensors(folder, drop=[NORM]), "wanted one tensor model.norm.weight, found none"),
        (lambda folder: change_config(folder, vocab_size=7), "has shape [320, 64], config.json says [7, 64]"),
        (lambda folder: (shard(folder), (folder / "model-00001-of-00002.safetensors").unlink()), "no such file"),
    ],
)
def test_what_is_missing_or_wrong_is_named_with_the_fix(tmp_path, spoil, said):
    toy.write_verifier(tmp_path)
    spoil(tmp_path)
    with pytest.raises(UserError) as caught:
        load_weights(tmp_path)
    assert said in str(caught.value) and str(tmp_path) in str(caught.value)
    assert "Fix: " in str(caught.value) and "\n" not in str(caught.value)


def test_the_config_of_a_plain_verifier_is_its_config_json(tmp_path):
    toy.write_verifier(tmp_path)
    assert verifier_config(tmp_path) == json.loads((tmp_path / "config.json").read_text())
