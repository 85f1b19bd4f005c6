"""A draft's folder, or a draft on the hub, as the subject of the lint rules. Called by the commands of this package."""

from pathlib import Path
from typing import Any

from harness.checkpoint.findings import Subject, VerifierFacts
from harness.checkpoint.hub import fetch_draft, is_hub_id
from harness.checkpoint.lint import algorithm_of
from harness.checkpoint.reading import open_checkpoint
from harness.checkpoint.verifier_facts import tokenizer_of
from harness.errors import UserError

VALUES_MAX = 1 << 27  # read where a rule looks at values: all weights of a draft of 134 million


def locate(name: str) -> tuple[Path, list[str]]:
    """(folder, names of the files) of a draft: a folder here, or else a repository of the hub.

    Raises:
        UserError: neither.
    """
    if not name:
        raise UserError("DRAFT: is empty. Fix: give the folder of a draft checkpoint, or its hub id")
    folder = Path(name)
    if folder.is_file():
        raise UserError(f"{name}: is a file. Fix: give the folder that holds it")
    if not folder.is_dir() and is_hub_id(name):
        return fetch_draft(name)
    if not folder.is_dir():
        raise UserError(f"{name}: no such folder. Fix: give the folder of a draft checkpoint, or its hub id")
    return folder, sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def examine(
    name: str, facts: VerifierFacts | None = None, all_values: bool = False, config: dict[str, Any] | None = None
) -> Subject:
    """The draft with what the rules need to know of it.

    Args:
        facts: of its verifier, if it is to be compared.
        all_values: read every value, however large the draft is.
        config: take this for its config.json.

    Raises:
        UserError: no such draft, or a damaged one.
    """
    folder, files = locate(name)
    stored, tensors = open_checkpoint(folder)
    config = stored if config is None else config
    return Subject(
        config=config,
        tensors=tensors,
        known=algorithm_of(config),
        files=files,
        facts=facts,
        path=name,
        tokenizer=tokenizer_of(folder),
        values_max=None if all_values else VALUES_MAX,
    )
