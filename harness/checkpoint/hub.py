"""What is asked of the Hugging Face hub: a draft's files, config first, and a verifier's config. Code is never taken.

Called by the commands where a name is no local folder. The errors of the client become one line each.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.jsonfile import read_object
from harness.progress import log

PART = r"[A-Za-z0-9][A-Za-z0-9_.-]*"  # of a hub id, and the name of a draft
HUB_ID = re.compile(f"{PART}/{PART}")
OTHER_LICENCE = "other"
# The hub's identifiers of licences that models carry.
LICENCES = (
    "afl-3.0", "agpl-3.0", "apache-2.0", "apple-amlr", "apple-ascl", "artistic-2.0", "bigcode-openrail-m",
    "bigscience-bloom-rail-1.0", "bigscience-openrail-m", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear",
    "bsl-1.0", "cc", "cc-by-2.0", "cc-by-3.0", "cc-by-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0",
    "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0",
    "cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0", "cdla-sharing-1.0",
    "creativeml-openrail-m", "epl-2.0", "eupl-1.2", "gemma", "gpl", "gpl-2.0", "gpl-3.0", "intel-research", "isc",
    "lgpl", "lgpl-2.1", "lgpl-3.0", "llama2", "llama3", "llama3.1", "llama3.2", "llama3.3", "llama4", "mit", "mpl-2.0",
    "ms-pl", "odbl", "odc-by", "openrail", "openrail++", "unlicense", "wtfpl", "zlib", OTHER_LICENCE,
)  # fmt: skip
LOCAL_FOLDERS = ("models/", "results/")  # of this project: relative, and shaped like a hub id
CONFIGS = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
WEIGHTS = ["*.safetensors", "*.safetensors.index.json"]


def is_hub_id(name: str) -> bool:
    """Whether a name reads as owner/name and is no folder here."""
    return HUB_ID.fullmatch(name) is not None and not name.startswith(LOCAL_FOLDERS) and not Path(name).exists()


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "ON", "YES")


@contextmanager
def asking(name: str) -> Iterator[None]:
    """Turn the client's errors about the repository `name` into a `UserError`."""
    from huggingface_hub import errors

    try:
        yield
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no"
        raise UserError(
            f"{name}: the hub answered with status {status}. Fix: check the name, and set HF_TOKEN for a gated model"
        ) from None
    except (errors.LocalEntryNotFoundError, errors.HTTPError, ConnectionError) as error:
        cause = "HF_HUB_OFFLINE is set" if _offline() else f"the hub cannot be reached ({type(error).__name__})"
        raise UserError(f"{name}: {cause}. Fix: connect and run again, or give a folder on this machine") from None


def _download(name: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    with asking(name):
        return Path(snapshot_download(name, allow_patterns=patterns))


def fetch_config(name: str) -> Path:
    """A folder with the repository's config and tokenizer, without weights.

    Raises:
        UserError: there is no such repository, or the hub cannot be reached.
    """
    return _download(name, CONFIGS)


def fetch_draft(name: str) -> tuple[Path, list[str]]:
    """(folder with config, tokenizer and weights, names of all files of the repository); other files are not fetched.

    Raises:
        UserError: there is no such repository, it holds no draft, or the hub cannot be reached.
    """
    from huggingface_hub import list_repo_files

    config: dict[str, Any] = read_object(fetch_config(name) / "config.json")
    if "speculators_config" not in config:
        raise UserError(f"{name}: its config.json has no speculators_config. Fix: convert the draft into the format")
    folder = _download(name, [*CONFIGS, *WEIGHTS])
    if _offline():
        return folder, sorted(path.name for path in folder.iterdir())
    with asking(name):
        return folder, sorted(list_repo_files(name))


def check_licence(name: str) -> None:
    """Refuse a licence that the hub does not know by that name.

    Raises:
        UserError: with the nearest one.
    """
    if name not in LICENCES:
        near = get_close_matches(name.lower(), LICENCES, n=1)
        fix = f"use {near[0]}" if near else f"use an identifier of the hub's, such as apache-2.0, or {OTHER_LICENCE}"
        raise UserError(f"--license = {name!r}: no licence that the hub knows. Fix: {fix}")


def licence_of(name: str | None, folder: Path | None) -> str | None:
    """Id of a model's licence by the header of its card: of the copy in `folder`, or on the hub; None if unknown."""
    from huggingface_hub import metadata_load, model_info

    card = folder / "README.md" if folder else None
    if card is not None and card.exists():
        return (metadata_load(card) or {}).get("license")
    if name is None or _offline():
        return None
    try:
        with asking(name):
            data = model_info(name).card_data
    except UserError as error:
        log(f"licence not looked up: {error}")
        return None
    return data.license if data else None
