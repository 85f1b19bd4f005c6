"""Writing so that nothing half-done ever looks whole: a temporary name first, then one rename.

Used by every step that leaves a file or folder behind.
"""

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import REFUSED, UserError

CHUNK_BYTES = 1 << 20
READABLE = 0o644  # safetensors writes files that only their owner can read


@contextmanager
def _making(path: Path) -> Iterator[None]:
    """Name `path`, and not the temporary name, where nothing can be made at that place."""
    try:
        yield
    except OSError as error:
        if error.errno not in {*REFUSED, errno.ENOENT, errno.ENAMETOOLONG}:
            raise
        why = (error.strerror or "refused").lower()
        raise UserError(f"{path}: cannot be written ({why}). Fix: give a place where files can be made") from None


def _temporary_name(path: Path) -> Path:
    """A name of this process beside `path`; what dead processes of this machine left under such names is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several machines may write into one folder, and a process of another one is not to be seen from here.
    machine = re.sub(r"[^0-9A-Za-z]", "", socket.gethostname())
    for left in path.parent.glob(f".{glob.escape(path.name)}.{machine}-*.partial"):
        owner = left.name.removesuffix(".partial").rpartition("-")[2]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{machine}-{os.getpid()}.partial")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file beside `path`; on success it is flushed to disk and renamed to `path`.

    Raises:
        UserError: `path` is a folder, or no file can be made there.
    """
    if path.is_dir():
        raise UserError(f"{path}: is a folder. Fix: give a file")
    with _making(path):
        partial = _temporary_name(path)
        partial.touch()  # told before the content is made
    try:
        yield partial
        partial.chmod(READABLE)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Give an empty temporary folder beside `path`; on success it takes the place of `path`.

    Raises:
        UserError: `path` is a file, or no folder can be made there.
    """
    if path.is_file():
        raise UserError(f"{path}: is a file. Fix: give a folder")
    with _making(path):
        partial = _temporary_name(path)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
    try:
        yield partial
        for file in partial.rglob("*"):
            # A link leads to somebody else's file, whose mode is theirs.
            if file.is_file() and not file.is_symlink() and file.stat().st_nlink == 1:
                file.chmod(READABLE)
        if path.exists():
            shutil.rmtree(path)
        partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON, whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line, whole or not at all."""
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read a file written by `write_jsonl`."""
    # Not splitlines(): it also breaks at characters such as U+2028, which JSON leaves as they are inside a text.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def json_sha256(content: Any) -> str:
    """Hex SHA-256 of `content` as canonical JSON (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
