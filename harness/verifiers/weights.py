"""Reads from a verifier folder what drafts take over: text config, embedding, head, final norm, each by memory map.

Used by training, parity and the checkpoint linter. Shape letters: V = vocabulary, H = width.
"""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from algorithms.contract import VerifierWeights
from harness.errors import UserError
from harness.jsonfile import read_object

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"
NORM = "norm.weight"
INDEX = "model.safetensors.index.json"
REPAIR = "Fix: make or download the verifier's folder again"


def verifier_config(folder: Path) -> dict[str, Any]:
    """The text config: config.json, or its `text_config` with the outer `tie_word_embeddings` where the inner has none.

    Raises:
        UserError: no config.json, or one without the sizes every draft needs.
    """
    path = folder / "config.json"
    outer = read_object(path, REPAIR)
    shared = {key: outer[key] for key in ("tie_word_embeddings",) if key in outer}
    inner = outer.get("text_config", outer)
    if not isinstance(inner, dict):
        raise UserError(f"{path}: text_config is not an object. {REPAIR}")
    config = shared | inner
    missing = [key for key in ("hidden_size", "vocab_size", "num_hidden_layers") if key not in config]
    if missing:
        raise UserError(f"{path}: holds no {', '.join(missing)}. {REPAIR}")
    return config


def load_weights(folder: Path) -> VerifierWeights:
    """Embedding [V, H], head [V, H] and final norm [H] of the verifier, in the dtype of the file, with its text config.

    Raises:
        UserError: the folder, its weights or one of the three tensors is missing, or a shape contradicts config.json.
    """
    config = verifier_config(folder)
    files = _tensor_files(folder)
    embedding_name = _only(folder, [name for name in files if _is(name, EMBEDDING)], EMBEDDING)
    prefix = embedding_name.removesuffix(EMBEDDING)
    embedding_VH = _read(files, embedding_name)
    heads = [name for name in files if _is(name, HEAD)]
    tied = config.get("tie_word_embeddings", not heads)  # families differ in their default; the file decides then
    head_VH = embedding_VH if tied else _read(files, _only(folder, heads, HEAD))
    final_norm_H = _read(files, _only(folder, [name for name in files if name == prefix + NORM], prefix + NORM))
    table, width = [config["vocab_size"], config["hidden_size"]], [config["hidden_size"]]
    for name, tensor, wanted in ((EMBEDDING, embedding_VH, table), (HEAD, head_VH, table), (NORM, final_norm_H, width)):
        if list(tensor.shape) != wanted:
            raise UserError(f"{folder}: {name} has shape {list(tensor.shape)}, config.json says {wanted}. {REPAIR}")
    return VerifierWeights(config, embedding_VH, head_VH, final_norm_H)


def _is(name: str, suffix: str) -> bool:
    return name == suffix or name.endswith(f".{suffix}")


def _only(folder: Path, names: list[str], wanted: str) -> str:
    if len(names) != 1:
        found = ", ".join(sorted(names)) or "none"
        raise UserError(f"{folder}: wanted one tensor {wanted}, found {found}. {REPAIR}")
    return names[0]


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Tensor name -> the file that holds it, for one file or an index over shards."""
    index = folder / INDEX
    if index.exists():
        where = read_object(index, REPAIR).get("weight_map")
        if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
            raise UserError(f"{index}: no weight_map. {REPAIR}")
        return {name: folder / file for name, file in where.items()}
    path = folder / "model.safetensors"
    with _opened(path) as file:
        return dict.fromkeys(file.keys(), path)


def _opened(path: Path) -> safe_open:
    if not path.is_file():
        raise UserError(f"{path}: no such file. {REPAIR}")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise UserError(f"{path}: damaged ({error}). {REPAIR}") from None


def _read(files: dict[str, Path], name: str) -> Tensor:
    with _opened(files[name]) as file:
        if name not in file.keys():  # noqa: SIM118 - safe_open is no mapping
            raise UserError(f"{files[name]}: holds no tensor {name}, although the index says so. {REPAIR}")
        return file.get_tensor(name)
