"""Reads another project's draft: config.json and its tensors, one file or shards, safetensors or `.bin`. Used by `run`.

A `.bin` file is a pickle: it is read for tensors alone, and whatever else it holds stops the conversion.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from harness.checkpoint.hub import asking, is_hub_id
from harness.errors import UserError
from harness.files import file_sha256
from harness.jsonfile import read_object

# By preference: (index over shards, single file).
FORMS = (
    ("model.safetensors.index.json", "model.safetensors"),
    ("pytorch_model.bin.index.json", "pytorch_model.bin"),
)
PATTERNS = ("*.json", "*.safetensors", "*.bin", "mask_embedding.pt")
HEAD_TENSORS = ("embed_tokens.weight", "lm_head.weight", "norm.weight")
# Beside the weights, and part of what the draft computes.
SIDE_FILES = {"mask_embedding.pt": "a separate embedding of the mask token"}


@dataclass(frozen=True)
class Source:
    """A draft as another project saved it.

    Attributes:
        name: hub id or folder name, without the way to it.
        revision: commit of the hub; None for a folder.
        files: hex SHA-256 by name of every file that was read.
        left_aside: weight files that hold the same in another form.
    """

    name: str
    revision: str | None
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    files: dict[str, str]
    left_aside: list[str]


def _download(name: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download

    if Path(name).is_file():
        raise UserError(f"{name}: is a file. Fix: give the folder that holds it")
    if not is_hub_id(name):
        raise UserError(f"{name}: no such folder, and no hub id. Fix: give a folder on this machine, or ORG/NAME")
    with asking(name):
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))


def verifier_folder(name: str, revision: str | None = None) -> Path:
    """The folder of a verifier; of one on the hub only what a conversion compares with.

    Raises:
        UserError: no such folder, and the hub does not give it.
    """
    if Path(name).is_dir():
        return Path(name)
    folder = _download(name, revision, ("*.json", "*.jinja", "*.txt"))
    index = folder / FORMS[0][0]
    files = set(read_object(index)["weight_map"].items()) if index.exists() else {(HEAD_TENSORS[0], FORMS[0][1])}
    wanted = sorted({file for tensor, file in files if tensor.endswith(HEAD_TENSORS) and ".layers." not in tensor})
    return _download(name, revision, tuple(wanted))


def open_source(place: str, revision: str | None = None) -> Source:
    """Read a draft from a folder or from the hub.

    Raises:
        UserError: something is missing, damaged, or more than tensors.
    """
    local = Path(place).is_dir()
    folder = Path(place) if local else _download(place, revision, PATTERNS)
    for name, what in SIDE_FILES.items():
        if (folder / name).exists():
            raise UserError(f"{folder / name}: {what}: not part of the format. Fix: convert a draft without it")
    config = read_object(folder / "config.json")
    paths, tensors = _weights(folder)
    present = [name for form in FORMS for name in form if (folder / name).exists()]
    read = {path.name for path in (folder / "config.json", *paths)}
    return Source(
        name=folder.resolve().name if local else place,
        revision=None if local else folder.name,
        config=config,
        tensors=tensors,
        files={name: file_sha256(folder / name) for name in sorted(read)},
        left_aside=[name for name in present if name not in read],
    )


def _weights(folder: Path) -> tuple[list[Path], dict[str, Tensor]]:
    """The files that hold the weights, and the tensors in them."""
    for index, single in FORMS:
        if (folder / index).exists():
            where = read_object(folder / index).get("weight_map")
            if not isinstance(where, dict) or any(Path(str(name)).name != name for name in where.values()):
                raise UserError(f"{folder / index}: no weight_map over files of this folder. Fix: copy it again")
            shards = {name: _load(folder / name) for name in sorted(set(where.values()))}
            tensors = {name: tensor for shard in shards.values() for name, tensor in shard.items()}
            if tensors.keys() != where.keys():
                told = ", ".join(sorted(tensors.keys() ^ where.keys()))
                raise UserError(f"{folder / index}: index and shards differ in {told}. Fix: copy every shard again")
            return [folder / index, *(folder / name for name in shards)], tensors
        if (folder / single).exists():
            return [folder / single], _load(folder / single)
    raise UserError(f"{folder}: no weights. Fix: give a folder with {FORMS[0][1]} or {FORMS[1][1]}, or with shards")


def _load(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UserError(f"{path}: no such file. Fix: copy every shard")
    if path.suffix == ".bin":
        return _load_tensors_only(path)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: damaged ({error}). Fix: download it again") from None


def _load_tensors_only(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged pickle raises anything
        said = str(error).splitlines()[0][:120]
        raise UserError(f"{path}: damaged, or more than tensors ({said}). Fix: save them as safetensors") from None
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise UserError(f"{path}: more than tensors by name. Fix: save the tensors as safetensors")
    return {str(name): tensor.contiguous() for name, tensor in content.items()}
