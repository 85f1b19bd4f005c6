"""`provenance.json` beside a draft: which weights it speaks of, how they came to be, what was changed since.

Written by `edit` and `card`, demanded by `publish`.
"""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from harness.checkpoint.reading import weight_files
from harness.checkpoint.writing import RECORD
from harness.errors import UserError
from harness.files import file_sha256, write_json
from harness.jsonfile import read_object
from harness.sections.base import Strict

CONVERSION = "conversion.json"  # as `convert` leaves it


class Edit(Strict):
    """One change of config.json: key path -> [before, after]."""

    changed: dict[str, list[Any]]


class Record(Strict):
    """Content of provenance.json.

    `training` and `results` come from a run of this project, `source` from a conversion of somebody else's draft.
    """

    name: str | None = Field(None, description="give the draft's name, or null")
    weights_sha256: dict[str, str] = Field(description="hash by file")
    edits: list[Edit] = Field(default_factory=list, description="list the changes, oldest first")
    training: dict[str, Any] | None = Field(None, description="give the training's settings and provenance, or null")
    results: dict[str, Any] | None = Field(None, description="give the measurement's provenance, or null")
    source: dict[str, Any] | None = Field(None, description="give what it was converted from, or null")

    @property
    def says_where_from(self) -> bool:
        """Whether it says how the weights came to be."""
        return self.training is not None or self.source is not None


def weight_hashes(folder: Path) -> dict[str, str]:
    """Hex SHA-256 by file name of the draft's weights."""
    return {path.name: file_sha256(path) for path in weight_files(folder)}


def _validated(model: type[BaseModel], content: dict[str, Any], path: Path) -> Any:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {where}: {first['msg'].lower()}. Fix: make it again with the card command") from None


def read_record(folder: Path) -> Record | None:
    """The record of a draft's folder; None where there is none.

    Raises:
        UserError: it is damaged, or speaks of other weights.
    """
    path = folder / RECORD
    if not path.exists():
        return None
    record = _validated(Record, read_object(path), path)
    if record.weights_sha256 != weight_hashes(folder):
        raise UserError(f"{path}: speaks of other weights than stand beside it. Fix: delete it and make it again")
    return record


def record_of(folder: Path) -> Record:
    """The record of a draft's folder, or a new one; of a converted draft it says from what."""
    record = read_record(folder) or Record(weights_sha256=weight_hashes(folder))
    if record.source is None and (folder / CONVERSION).exists():
        return record.model_copy(update={"source": read_object(folder / CONVERSION)})
    return record


def write_record(folder: Path, record: Record) -> None:
    """Put `record` beside the draft."""
    write_json(folder / RECORD, record.model_dump(exclude_none=True))
