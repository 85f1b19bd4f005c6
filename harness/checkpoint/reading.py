"""Reads a draft's folder: config.json and safetensors, one file or shards. Nothing that could run code is opened.

`open_checkpoint` takes faulty drafts too, for the linter; everything else calls `read_checkpoint`.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from harness.checkpoint.lint import checkpoint_faults
from harness.errors import UserError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        UserError: no such file, not JSON, or not an object.
    """
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Fix: give a folder that holds {path.name}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not JSON ({error}). Fix: write or download the checkpoint again") from None
    if not isinstance(content, dict):
        raise UserError(
            f"{path}: holds a {type(content).__name__}, not an object. Fix: write or download the checkpoint again"
        )
    return content


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Fix: copy every shard of the checkpoint") from None
    except SafetensorError as error:
        raise UserError(f"{path}: damaged ({error}). Fix: write or download the checkpoint again") from None


def _load_shards(folder: Path) -> dict[str, Tensor]:
    index = folder / INDEX_FILE
    where = read_object(index).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise UserError(f"{index}: no weight_map. Fix: write or download the checkpoint again")
    outside = next((name for name in where.values() if Path(name).name != name), None)
    if outside is not None:
        raise UserError(f"{index}: shard {outside!r} is not a file name. Fix: list files of this folder only")
    shards = {name: _load(folder / name) for name in sorted(set(where.values()))}
    lost = next((tensor for tensor, name in where.items() if tensor not in shards[name]), None)
    if lost is not None:
        raise UserError(f"{index}: {lost} is not in {where[lost]}. Fix: write or download the checkpoint again")
    return {tensor: shards[name][tensor] for tensor, name in where.items()}


def open_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json content and tensors by name, whatever they say.

    Raises:
        UserError: something is missing or damaged.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder. Fix: give the folder of a draft checkpoint")
    config = read_object(folder / "config.json")
    if (folder / INDEX_FILE).exists():
        return config, _load_shards(folder)
    if not (folder / SINGLE_FILE).exists():
        raise UserError(f"{folder}: no {SINGLE_FILE} and no {INDEX_FILE}. Fix: convert the weights to safetensors")
    return config, _load(folder / SINGLE_FILE)


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json content and tensors by name of a draft that the server would read as it was meant.

    Raises:
        UserError: something is missing or damaged, or the linter finds a fault that needs no verifier to see.
    """
    config, tensors = open_checkpoint(folder)
    faults = checkpoint_faults(config, tensors)
    if faults:
        more = f" (and {len(faults) - 1} more: python -m harness.checkpoint lint {folder})" if len(faults) > 1 else ""
        raise UserError(f"{folder}: {faults[0].rule}: {faults[0].found}. Fix: {faults[0].fix}{more}")
    return config, tensors
