"""Files that a user names on the command line, checked before the work. Used by the gate and by `environments`."""

from pathlib import Path

from harness.errors import UserError
from harness.files import replacing


def check_place(option: str, path: Path | None) -> None:
    """Refuse a file that could not be written: it is a folder, or lies in one that is missing; None is fine.

    Raises:
        UserError: with the option and the path as the user gave them.
    """
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"{option} = {path}: a folder, not a file. Fix: name a file, its folder must be there")
    if not path.parent.is_dir():
        raise UserError(
            f"{option} = {path}: no folder {path.parent}. Fix: make it, or name a file in one that is there"
        )


def write_text(path: Path | None, text: str) -> None:
    """Write `text`, whole or not at all; nothing for None."""
    if path is not None:
        with replacing(path) as partial:
            partial.write_text(text, encoding="utf-8")
