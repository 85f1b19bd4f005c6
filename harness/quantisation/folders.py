"""Writes the folder of a quantised verifier and that of a draft for it. Called by `python -m harness.quantisation`.

Projections are quantised; embedding, head and everything else keep their type, and are listed as ignored where the
server would take them for quantised.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from harness.errors import UserError
from harness.files import file_sha256, json_sha256, replacing_folder, write_json
from harness.jsonfile import read_object
from harness.progress import log
from harness.provenance import collect
from harness.quantisation.schemes import quantise, quantization_config, relative_error
from harness.verifiers.weights import EMBEDDING, INDEX, REPAIR, verifier_config

RECORD = "verifier.json"
PROJECTION = "_proj.weight"
SCALE = "weight_scale"
EXPERTS = ".experts."
WEIGHTS = "*.safetensors"


def is_projection(name: str, tensor: Tensor) -> bool:
    """Whether a tensor is the weight of a projection: what is quantised."""
    return name.endswith(PROJECTION) and tensor.ndim == 2


def ignored_module(name: str, tensor: Tensor) -> str | None:
    """Module of a matrix that stays as it is and is no table of embeddings; None for all other tensors."""
    plain = tensor.ndim == 2 and name.endswith(".weight") and not name.endswith(EMBEDDING)
    return name.removesuffix(".weight") if plain and not is_projection(name, tensor) else None


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in sorted(file.keys()):
            yield name, file.get_tensor(name)


def quantise_file(source: Path, target: Path, scheme: str) -> tuple[dict[str, float], list[str], list[str]]:
    """Write one file of weights; returns (error by quantised tensor, ignored modules, all names written)."""
    written: dict[str, Tensor] = {}
    errors: dict[str, float] = {}
    ignored = []
    for name, tensor in _tensors(source):
        if is_projection(name, tensor):
            q_NK, scale_N1 = quantise(tensor, scheme)
            written |= {name: q_NK, name.removesuffix("weight") + SCALE: scale_N1}
            errors[name] = relative_error(tensor, q_NK, scale_N1)
        elif EXPERTS in name and tensor.ndim == 3:
            raise UserError(
                f"{source}: {name}: experts in one tensor are not quantised here. Fix: leave `quantised` out"
            )
        else:
            written[name] = tensor
            ignored += [module] if (module := ignored_module(name, tensor)) else []
    save_file(written, target, metadata={"format": "pt"})
    return errors, ignored, list(written)


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path.resolve(), target)
    except OSError:  # another file system: a copy says the same
        shutil.copyfile(path, target)


def _refuse(verifier: Path, out: Path) -> dict[str, Any]:
    """The verifier's own record; refuses what is no verifier, is quantised already, or is also the target."""
    if out.resolve() == verifier.resolve():
        raise UserError(f"--out {out}: is the verifier itself. Fix: name another folder")
    if "quantization_config" in read_object(verifier / "config.json"):
        raise UserError(f"{verifier}: is quantised already. Fix: give the original verifier")
    _refuse_foreign_files(verifier, out)
    return read_object(verifier / RECORD)


def _refuse_foreign_files(verifier: Path, out: Path) -> None:
    """Replacing a folder deletes what is in it. One without a record is ours all the same: Snakemake makes the folder
    of a job's output and, before it runs the job again, takes the record away."""
    held = {path.name for path in out.iterdir()} if out.exists() else set()
    foreign = sorted(held - {path.name for path in verifier.iterdir()} - {RECORD})
    if not foreign and "config.json" in held and "quantization_config" not in read_object(out / "config.json"):
        foreign = ["config.json"]
    if foreign:
        named = ", ".join(foreign[:5])
        raise UserError(f"{out}: holds {named}, which this step did not write. Fix: move it away or use another --out")


def quantise_verifier(verifier: Path, scheme: str, out: Path) -> dict[str, Any]:
    """Write `out`: the verifier in 8 bits, with a verifier.json that says how far its weights moved.

    Args:
        verifier: folder made by `harness.verifiers`.
        scheme: key of `SCHEMES`.
        out: folder to make or replace.

    Raises:
        UserError: no verifier, a quantised one, no projections of two dimensions, or a folder of somebody else's.
    """
    record = _refuse(verifier, out)
    errors: dict[str, float] = {}
    ignored: list[str] = []
    places: dict[str, str] = {}
    with replacing_folder(out) as fresh:
        for path in sorted(verifier.glob(WEIGHTS)):
            found, left, names = quantise_file(path, fresh / path.name, scheme)
            errors |= found
            ignored += left
            places |= dict.fromkeys(names, path.name)
        if not errors:
            raise UserError(f"{verifier}: holds no projection of two dimensions to quantise. {REPAIR}")
        _write_around(verifier, fresh, quantization_config(scheme, sorted({*ignored, "lm_head"})), places)
        said = {"scheme": scheme, "tensors": len(errors), "relative_error_max": max(errors.values())}
        record = _record(record, said, fresh)
        write_json(fresh / RECORD, record)
    log(f"{out}: {len(errors)} projections in {scheme}, largest relative error {said['relative_error_max']:.4f}")
    return record


def _write_around(verifier: Path, fresh: Path, quantization: dict[str, Any], places: dict[str, str]) -> None:
    """Everything but the weights: config.json with its new section, the index of shards, tokenizer files as links."""
    write_json(fresh / "config.json", read_object(verifier / "config.json") | {"quantization_config": quantization})
    if (verifier / INDEX).exists():
        write_json(fresh / INDEX, {"metadata": {}, "weight_map": places})
    for path in verifier.iterdir():
        if not (fresh / path.name).exists() and path.name != RECORD:
            _link(path, fresh / path.name)


def _record(original: dict[str, Any], said: dict[str, Any], folder: Path) -> dict[str, Any]:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)} for path in sorted(folder.iterdir())
    }
    return {
        "id": original["id"],
        "source_sha256": original["sha256"],
        "quantised": said,
        "sha256": json_sha256(files),
        "files": files,
        "provenance": collect(said, None, original["provenance"]["scale"]),
    }


def redirect_draft(draft: Path, verifier: Path, out: Path) -> None:
    """Write `out`: the same draft, to be served with `verifier` instead of the one in its config. Weights are linked.

    Args:
        draft: folder in the speculators format.
        verifier: folder as the server will find it, relative to where it runs.
        out: folder to make or replace.

    Raises:
        UserError: `draft` is no draft, or the two models differ in width or vocabulary.
    """
    config = read_object(draft / "config.json")
    try:
        named, sizes = config["speculators_config"]["verifier"], config["transformer_layer_config"]
    except KeyError as error:
        raise UserError(f"{draft}/config.json: holds no {error}. Fix: give a draft in the speculators format") from None
    text = verifier_config(verifier)
    for key, ours in (("vocab_size", sizes["vocab_size"]), ("hidden_size", _width(config, sizes))):
        if text[key] != ours:
            raise UserError(
                f"{verifier}: {key} = {text[key]}, the draft was made for {ours}. Fix: give its own verifier"
            )
    with replacing_folder(out) as fresh:
        changed = config["speculators_config"] | {"verifier": named | {"name_or_path": str(verifier)}}
        write_json(fresh / "config.json", config | {"speculators_config": changed})
        for path in draft.iterdir():
            if path.is_file() and path.name != "config.json":
                _link(path, fresh / path.name)


def _width(config: dict[str, Any], sizes: dict[str, Any]) -> int:
    """Width of the verifier that a draft was made for."""
    return config.get("target_hidden_size") or sizes["hidden_size"]
