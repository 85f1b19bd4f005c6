"""Brings a verifier from its source into a folder and says what the source's content was.

Called by `prepare.py`. Only weights in safetensors are taken; code and pickles stay behind.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from harness.codeversion import versions
from harness.errors import UserError
from harness.files import file_sha256, json_sha256
from harness.sections.verifier import (
    READS_IMAGES,
    FolderVerifier,
    HubVerifier,
    MiniatureVerifier,
    Verifier,
    WheelVerifier,
)
from harness.verifiers import wheel
from harness.verifiers.template import fix_variables

KEPT_SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".model")
TRACES_OF_THE_MAKER = (
    "_name_or_path",
    "_model_name_or_path",
    "name_or_path",
    "_from_model_config",
    "is_local",
    "local_files_only",
)
EDITED_FILES = ("config.json", "tokenizer_config.json", "generation_config.json")


def source_sha256(verifier: Verifier) -> str:
    """Hash of what the verifier is made from: a pinned commit stands for its content, a miniature is settings and code.

    Raises:
        UserError: the source is not there.
    """
    if isinstance(verifier, WheelVerifier):
        return file_sha256(wheel.find(verifier))
    if isinstance(verifier, HubVerifier):
        return json_sha256([verifier.id, verifier.revision])
    if isinstance(verifier, MiniatureVerifier):
        builder = "vision" if verifier.family == READS_IMAGES else "build"
        return json_sha256([verifier.model_dump(), versions(f"harness.verifiers.miniature.{builder}")])
    return json_sha256({path.name: file_sha256(path) for path in _model_files(_existing_folder(verifier))})


def fetch(verifier: Verifier, folder: Path) -> None:
    """Fill the empty `folder` with the verifier in Hugging Face layout.

    Raises:
        UserError: the source is not there, cannot be reached, or holds no safetensors, tokenizer or chat template.
    """
    if isinstance(verifier, WheelVerifier):
        wheel.dequantise(wheel.find(verifier), folder)
    elif isinstance(verifier, MiniatureVerifier):
        if verifier.family == READS_IMAGES:
            from harness.verifiers.miniature.vision import build
        else:
            from harness.verifiers.miniature.build import build

        build(verifier, folder)
    elif isinstance(verifier, HubVerifier):
        _link_files(_download(verifier), folder)
    else:
        _link_files(_existing_folder(verifier), folder)
    for name in EDITED_FILES:
        _remove_traces(folder / name)
    _require_complete(verifier, folder)
    fix_variables(folder, verifier.template)
    for path in folder.iterdir():
        path.chmod(path.stat().st_mode | 0o444)


def _existing_folder(verifier: FolderVerifier) -> Path:
    folder = Path(verifier.path)
    if not folder.is_dir():
        raise UserError(
            f"verifier {verifier.id}: {verifier.path}: no such folder. "
            "Fix: put the model there or correct verifier.path"
        )
    return folder


def _model_files(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and path.suffix in KEPT_SUFFIXES and path.name != "verifier.json"
    )


def _link_files(source: Path, folder: Path) -> None:
    for path in _model_files(source):
        target = folder / path.name
        if path.name in EDITED_FILES:
            shutil.copyfile(path, target)
            continue
        try:
            os.link(path.resolve(), target)  # the hub's cache holds symbolic links
        except OSError:  # another file system: a copy says the same
            shutil.copyfile(path, target)


def _download(verifier: HubVerifier) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    where = f"verifier {verifier.id} at {verifier.revision[:12]}"
    try:
        kept = [f"*{suffix}" for suffix in KEPT_SUFFIXES]
        return Path(snapshot_download(verifier.id, revision=verifier.revision, allow_patterns=kept))
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no"
        raise UserError(
            f"{where}: the hub answered with status {status}. Fix: check id and revision, and log in for a gated model"
        ) from None
    except (LocalEntryNotFoundError, OSError) as error:
        if getattr(error, "errno", None) == 28:  # ENOSPC has its own message
            raise
        offline = os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")
        cause = (
            "HF_HUB_OFFLINE is set and the cache does not hold it"
            if offline
            else f"the hub cannot be reached ({type(error).__name__})"
        )
        raise UserError(
            f"{where}: {cause}. Fix: connect once, or download it elsewhere and use `source: folder`"
        ) from None


def _remove_traces(path: Path) -> None:
    """Drop the keys that say where and by whom a file was made: machine paths have no place in an artifact."""
    if not path.exists():
        return
    content: dict[str, Any] = json.loads(path.read_text())
    kept = {key: value for key, value in content.items() if key not in TRACES_OF_THE_MAKER}
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")


def _require_complete(verifier: Verifier, folder: Path) -> None:
    names = [path.name for path in folder.iterdir()]
    templates = folder / "tokenizer_config.json"
    wanted = {
        "config.json": "config.json" in names,
        "weights in safetensors": any(name.endswith(".safetensors") for name in names),
        "a tokenizer": any(name in names for name in ("tokenizer.json", "tokenizer.model", "vocab.json")),
        "a chat template": "chat_template.jinja" in names
        or (templates.exists() and "chat_template" in json.loads(templates.read_text())),
    }
    missing = ", ".join(thing for thing, there in wanted.items() if not there)
    if missing:
        raise UserError(
            f"verifier {verifier.id}: the source lacks {missing}. "
            "Fix: name an instruction-tuned model saved as safetensors"
        )
