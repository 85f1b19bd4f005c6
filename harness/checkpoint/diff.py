"""Compare two drafts: keys of config.json, and tensors by name, shape, dtype and value.

Exit code 0: the same; 1: they differ; 2: one of them cannot be read.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.checkpoint.examine import locate
from harness.checkpoint.reading import open_checkpoint
from harness.checkpoint.release import weight_hashes
from harness.checkpoint.stored import Readable, blocks
from harness.files import write_json

ABSENT = "(absent)"
HELP = "compare two drafts, config and tensors"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of `diff`."""
    parser.add_argument("a", metavar="A", help="folder of a draft, or its hub id")
    parser.add_argument("b", metavar="B", help="folder of another, or its hub id")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the comparison as JSON")


def _leaves(content: Any, path: str = "") -> dict[str, Any]:
    """Values of a JSON object by dotted path; lists of plain values and empty objects are values."""
    if isinstance(content, dict) and content:
        items = {f"{path}.{key}" if path else key: value for key, value in content.items()}
    elif isinstance(content, list) and any(isinstance(value, (dict, list)) for value in content):
        items = {f"{path}.{place}": value for place, value in enumerate(content)}
    else:
        return {path: content}
    return {key: value for name, inner in items.items() for key, value in _leaves(inner, name).items()}


def differing_keys(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """(value in `a`, value in `b`) by dotted path, where they differ."""
    ours, theirs = _leaves(a), _leaves(b)
    pairs = {key: (ours.get(key, ABSENT), theirs.get(key, ABSENT)) for key in ours | theirs}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _gap(a: Readable, b: Readable) -> float:
    """Largest absolute difference; NaN against anything but NaN counts as infinite."""
    largest = 0.0
    for rows in blocks(a):
        x, y = a[rows].double(), b[rows].double()
        apart = (x - y).abs()
        apart[(x == y) | (x.isnan() & y.isnan())] = 0.0  # infinities and NaN on both sides
        largest = max(largest, float(apart.nan_to_num(nan=float("inf"), posinf=float("inf")).max()))
    return largest


def differing_tensors(a: dict[str, Any], b: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What differs by tensor name: only in one, shape, dtype, or `max_abs_difference`; equal ones are left out."""
    found: dict[str, dict[str, Any]] = {}
    for name in [*a, *(name for name in b if name not in a)]:
        if name not in a or name not in b:
            found[name] = {"only_in": "a" if name in a else "b"}
            continue
        ours, theirs = a[name], b[name]
        told: dict[str, Any] = {}
        if ours.dtype != theirs.dtype:
            told["dtype"] = [str(tensor.dtype).removeprefix("torch.") for tensor in (ours, theirs)]
        if tuple(ours.shape) != tuple(theirs.shape):
            told["shape"] = [list(ours.shape), list(theirs.shape)]
        elif gap := _gap(ours, theirs):
            told["max_abs_difference"] = gap if gap < float("inf") else "infinite"
        if told:
            found[name] = told
    return found


def compare(a: Path, b: Path) -> dict[str, Any]:
    """Everything that two drafts differ in, as JSON-able data.

    Raises:
        UserError: one of them cannot be read.
    """
    (config_a, tensors_a), (config_b, tensors_b) = open_checkpoint(a), open_checkpoint(b)
    return {
        "config": {key: list(pair) for key, pair in differing_keys(config_a, config_b).items()},
        "tensors": differing_tensors(tensors_a, tensors_b),
        "tensors_compared": len(tensors_a.keys() & tensors_b.keys()),
        "weights_of_equal_hash": sorted(weight_hashes(a).values()) == sorted(weight_hashes(b).values()),
    }


def _table(given: argparse.Namespace, found: dict[str, Any]) -> Table:
    same = "equal" if found["weights_of_equal_hash"] else "not equal"
    table = Table(title=f"{given.a} and {given.b}: weight files {same} by hash", title_justify="left")
    table.add_column("what", overflow="fold")
    for heading in ("A", "B"):
        table.add_column(heading, overflow="fold")
    for key, pair in found["config"].items():
        table.add_row(escape(key), *(escape(json.dumps(value)) for value in pair))
    for name, told in found["tensors"].items():
        for what, value in told.items():
            pair = [str(each) for each in value] if isinstance(value, list) else [str(value), ""]
            table.add_row(escape(f"{name}: {what.replace('_', ' ')}"), *map(escape, pair))
    return table


def run(given: argparse.Namespace) -> int:
    """Compare two drafts."""
    found = compare(locate(given.a)[0], locate(given.b)[0])
    if given.out:
        write_json(given.out, found)
    if given.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    elif found["config"] or found["tensors"]:
        Console().print(_table(given, found))
    else:
        print(f"{given.a} and {given.b}: the same config and {found['tensors_compared']} equal tensors")
    return 1 if found["config"] or found["tensors"] else 0
