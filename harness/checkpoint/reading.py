"""Reads a draft's folder: config.json and safetensors, one file or shards. Nothing that could run code is opened.

`open_checkpoint` takes faulty drafts too, for the linter; everything else calls `read_checkpoint`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from harness.checkpoint.lint import checkpoint_faults
from harness.checkpoint.stored import Stored
from harness.checkpoint.tensor_rules import INDEX_FILE, SINGLE_FILE
from harness.errors import UserError
from harness.jsonfile import read_object


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Fix: copy every shard of the checkpoint") from None
    except SafetensorError as error:
        raise UserError(f"{path}: damaged ({error}). Fix: write or download the checkpoint again") from None


def _shards(folder: Path) -> dict[str, str]:
    """File name by tensor name, as the index says."""
    index = folder / INDEX_FILE
    where = read_object(index).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise UserError(f"{index}: no weight_map. Fix: write or download the checkpoint again")
    outside = next((name for name in where.values() if Path(name).name != name), None)
    if outside is not None:
        raise UserError(f"{index}: shard {outside!r} is not a file name. Fix: list files of this folder only")
    return where


def _open_shards(folder: Path) -> dict[str, Stored]:
    where = _shards(folder)
    files = {name: _opened(folder / name) for name in sorted(set(where.values()))}
    held = {name: set(file.keys()) for name, file in files.items()}
    lost = next((tensor for tensor, name in where.items() if tensor not in held[name]), None)
    if lost is not None:
        raise UserError(
            f"{folder / INDEX_FILE}: {lost} is not in {where[lost]}. Fix: write or download the checkpoint again"
        )
    return {tensor: Stored(files[name], tensor) for tensor, name in where.items()}


def weight_files(folder: Path) -> list[Path]:
    """The files of the checkpoint's tensors.

    Raises:
        UserError: there are none, or the index is damaged.
    """
    if (folder / INDEX_FILE).exists():
        return [folder / name for name in sorted(set(_shards(folder).values()))]
    if not (folder / SINGLE_FILE).exists():
        raise UserError(f"{folder}: no {SINGLE_FILE} and no {INDEX_FILE}. Fix: convert the weights to safetensors")
    return [folder / SINGLE_FILE]


def open_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Stored]]:
    """config.json content and tensors by name, whatever they say; only the tensors' headers are read.

    Raises:
        UserError: something is missing or damaged.
    """
    if folder.is_file():
        raise UserError(f"{folder}: is a file. Fix: give the folder that holds it")
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder. Fix: give the folder of a draft checkpoint")
    config = read_object(folder / "config.json")
    files = weight_files(folder)
    if (folder / INDEX_FILE).exists():
        return config, _open_shards(folder)
    file = _opened(files[0])
    return config, {name: Stored(file, name) for name in file.keys()}  # noqa: SIM118 - safe_open is no mapping


def in_memory(tensors: Mapping[str, Stored]) -> dict[str, Tensor]:
    """Copies of the stored tensors: the file may change or go."""
    return {name: tensor[:].clone() for name, tensor in tensors.items()}


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json content and tensors by name of a draft that the server would read as it was meant.

    Raises:
        UserError: something is missing or damaged, or the linter finds a fault that needs no verifier to see.
    """
    config, stored = open_checkpoint(folder)
    tensors = in_memory(stored)
    faults = checkpoint_faults(config, tensors)
    if faults:
        more = f" (and {len(faults) - 1} more: python -m harness.checkpoint lint {folder})" if len(faults) > 1 else ""
        raise UserError(f"{folder}: {faults[0].rule}: {faults[0].found}. Fix: {faults[0].fix}{more}")
    return config, tensors
