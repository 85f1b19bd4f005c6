"""Reads a JSON file that holds an object, or says in one line why it is none.

Used by what reads checkpoints and verifiers of others: such a file may be anything.
"""

import json
from pathlib import Path
from typing import Any

from harness.errors import UserError

NESTED_MAX = 100  # a config has about five levels; Python itself ends at a thousand
AGAIN = "Fix: write or download the checkpoint again"


def read_object(path: Path, repair: str = AGAIN) -> dict[str, Any]:
    """A JSON file that holds an object; `repair` says how a damaged one is mended.

    Raises:
        UserError: no such file, not JSON, not an object, or nested beyond any use.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Fix: give a folder that holds {path.name}") from None
    except NotADirectoryError:
        raise UserError(f"{path.parent}: is a file. Fix: give the folder that holds it") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder, not a file. {repair}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}). {repair}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds a {type(content).__name__}, not an object. {repair}")
    if _is_nested_beyond(content, NESTED_MAX):
        raise UserError(f"{path}: nested more than {NESTED_MAX} levels deep. {repair}")
    return content


def _is_nested_beyond(content: Any, levels: int) -> bool:
    """Whether there is something below that many levels; told without recursion."""
    level = [content]
    for _ in range(levels):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
        if not level:
            return False
    return True
