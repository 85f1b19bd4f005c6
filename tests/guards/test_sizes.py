"""Budgets of size: functions and files stay short as a whole, and the repository stays light."""

import ast
import statistics
from pathlib import Path

import pytest

from tests.guards.sources import ROOT, kept_files, python_files, text_of

CODE = ("algorithms", "harness", "reports", "benchmarks")
LOCKS = {Path("requirements/cpu.lock"), Path("requirements/cuda.lock")}


def _share(values: list[int], share: float) -> int:
    """The value that `share` of all values do not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def _function_lines() -> list[int]:
    trees = [ast.parse(text_of(path)) for path in python_files(*CODE)]
    functions = [node for tree in trees for node in ast.walk(tree)
                 if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]  # fmt: skip
    return [node.end_lineno - node.lineno + 1 for node in functions]


def test_functions_have_15_lines_in_the_middle_and_seldom_more_than_60():
    lines = _function_lines()
    assert len(lines) > 300
    assert statistics.median(lines) <= 15 and _share(lines, 0.95) <= 60


def test_files_have_150_lines_in_the_middle_and_seldom_more_than_400():
    lines = [len(text_of(path).splitlines()) for path in python_files(*CODE)]
    assert statistics.median(lines) <= 150 and _share(lines, 0.95) <= 400


def test_the_shares_are_counted_from_the_bottom():
    assert _share(list(range(1, 101)), 0.95) == 96 and _share([7], 0.95) == 7


def _is_binary(path: Path) -> bool:
    return b"\0" in (ROOT / path).read_bytes()[:8192]


@pytest.mark.parametrize(("what", "limit_bytes"), [("one file", 50_000), ("all together", 200_000)])
def test_binary_files_are_few_and_small(what: str, limit_bytes: int):
    sizes = {str(path): (ROOT / path).stat().st_size for path in kept_files() if _is_binary(path)}
    counted = max(sizes.values(), default=0) if what == "one file" else sum(sizes.values())
    assert counted <= limit_bytes, sizes


def test_the_repository_is_light():
    sizes = [(ROOT / path).stat().st_size for path in kept_files() if path not in LOCKS]
    assert sum(sizes) < 6_000_000
