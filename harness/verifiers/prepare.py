"""Makes models/<name>/ and its verifier.json, or finds that they are as they should be and leaves them alone.

Called by `python -m harness.verifiers`. verifier.json: id, source, source_sha256, sha256 (of the table of files),
files, checks, provenance.
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from harness.errors import UserError
from harness.files import file_sha256, json_sha256, replacing_folder, write_json
from harness.progress import log
from harness.provenance import collect
from harness.sections.base import Strict
from harness.sections.plan import VerifierSize
from harness.sections.verifier import Verifier, VerifierCheck
from harness.verifiers.checks import run_checks
from harness.verifiers.sources import KEPT_SUFFIXES, fetch, source_sha256

RECORD = "verifier.json"


class Settings(Strict):
    """The part of a reproduction that shapes the verifier's folder."""

    verifier: Verifier
    checks: list[VerifierCheck]
    size: VerifierSize | None = Field(None, description="give the sizes that were planned with, or null")
    scale: Literal["full", "smoke", "mini"]


def prepare(settings: Settings, folder: Path) -> dict[str, Any]:
    """Make sure that `folder` holds the verifier, whole and checked; returns the content of its verifier.json.

    Raises:
        UserError: the source is not there, a check fails, or `folder` holds something that this step did not write.
    """
    source = source_sha256(settings.verifier)
    record = _sound_record(folder, settings, source)
    if record is None:
        _refuse_foreign_files(folder)
        with replacing_folder(folder) as fresh:
            log(f"{settings.verifier.id}: making {folder}")
            fetch(settings.verifier, fresh)
            _check_size(settings, fresh)
            record = _record(settings, source, fresh)
            record["checks"] = run_checks(fresh, settings.verifier.id, settings.checks)
            write_json(fresh / RECORD, record)
    else:
        _check_size(settings, folder)
    if _asked(record["checks"]) != _asked([check.model_dump() for check in settings.checks]):
        record["checks"] = run_checks(folder, settings.verifier.id, settings.checks)
        write_json(folder / RECORD, record)
    margins = [f"{min(check['margin_min_nats'].values()):.1f}" for check in record["checks"]]
    known = f"{len(margins)} known answers right, least margins {', '.join(margins) or 'none'} nats"
    log(f"{settings.verifier.id}: {folder} is whole; {known}")
    return record


def _check_size(settings: Settings, folder: Path) -> None:
    """Refuse a verifier of other sizes than the plan was made for."""
    from harness.verifiers.weights import verifier_config

    wrong = list(settings.size.differing(verifier_config(folder))) if settings.size else []
    if wrong:
        raise UserError(
            f"plan.verifier of {settings.verifier.id}: {'; '.join(wrong)}, says its config.json. "
            "Fix: correct plan.verifier and look at the plan again"
        )


def _asked(checks: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(check["prompt"], check["answer"]) for check in checks]


def _record(settings: Settings, source: str, folder: Path) -> dict[str, Any]:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)} for path in sorted(folder.iterdir())
    }
    return {
        "id": settings.verifier.id,
        "source": settings.verifier.model_dump(),
        "source_sha256": source,
        "sha256": json_sha256(files),
        "files": files,
        "provenance": collect(settings.model_dump(), None, settings.scale),
    }


def _sound_record(folder: Path, settings: Settings, source: str) -> dict[str, Any] | None:
    """The folder's record, if it was made from this source and every file still has its hash; else None."""
    try:
        record = json.loads((folder / RECORD).read_text())
        same = record["source"] == settings.verifier.model_dump() and record["source_sha256"] == source
        damaged = [name for name, file in record["files"].items() if not _intact(folder / name, file)]
    except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError):
        return None
    if damaged:
        log(f"{folder}: damaged or missing: {', '.join(damaged)}; making it again")
    return record if same and not damaged else None


def _intact(path: Path, file: dict[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == file["bytes"] and file_sha256(path) == file["sha256"]


def _refuse_foreign_files(folder: Path) -> None:
    """Replacing a folder deletes what is in it, so it must hold nothing but a model."""
    held = sorted(folder.iterdir()) if folder.exists() else []
    foreign = [path.name for path in held if path.is_dir() or path.suffix not in KEPT_SUFFIXES]
    if foreign:
        named = ", ".join(foreign[:5])
        raise UserError(
            f"{folder}: holds {named}, which this step did not write. Fix: move it away or use another --out"
        )
