"""The one table of other projects' layouts, and which of them a source is in. Used by `run` and the command line.

What a layout that becomes an algorithm's checkpoint looks like stands in that algorithm's `foreign.py`.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import algorithms
from algorithms.foreign import ForeignLayout, architecture, plain_name
from harness.checkpoint.convert.native import LAYOUTS as NATIVE
from harness.errors import UserError

LAYOUTS = {layout.name: layout for layout in (*NATIVE, *algorithms.foreign_layouts())}


def layout_of(config: dict[str, Any], tensors: Iterable[str], asked: str | None, place: str) -> ForeignLayout:
    """The layout of a source: the one asked for, else the only one that recognises it.

    Raises:
        UserError: none or several do, or the asked one is not in the table; `place` is what it calls config.json.
    """
    if asked is not None and asked not in LAYOUTS:
        near = get_close_matches(asked, LAYOUTS, n=1)
        raise UserError(f"--from {asked}: no such layout. Fix: use {near[0] if near else ', '.join(LAYOUTS)}")
    if asked is not None:
        return LAYOUTS[asked]
    if "speculators_model_type" in config:
        raise UserError(
            f"{place}: in the speculators format already. Fix: look at it with python -m harness.checkpoint lint"
        )
    names = {plain_name(name) for name in tensors}
    found = [layout for layout in LAYOUTS.values() if layout.recognise(config, names)]
    if len(found) != 1:
        seen = ", ".join(layout.name for layout in found) or "none that is known"
        said = f"{place}: architectures {architecture(config)!r} and its tensors: layout {seen}"
        raise UserError(f"{said}. Fix: pass --from, one of {', '.join(LAYOUTS)}")
    return found[0]
