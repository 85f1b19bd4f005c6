"""Budgets, borders between the parts, and what our code must never do."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import algorithms
from tests.guards.sources import ROOT, python_files, text_of

FUNCTION_LINES_MAX = 100
FILE_LINES_MAX = 600
SOURCE = ("algorithms", "harness", "reports", "benchmarks")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _trees(*folders: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in python_files(*folders):
        yield path, ast.parse(text_of(path), str(path))


def test_no_function_and_no_file_is_too_long():
    long = [f"{path}: {len(text_of(path).splitlines())} lines" for path in python_files()
            if len(text_of(path).splitlines()) > FILE_LINES_MAX]  # fmt: skip
    for path, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS) and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX:
                long.append(f"{path}:{node.lineno}: {node.name} has {node.end_lineno - node.lineno + 1} lines")
    assert not long


def test_the_snakefile_has_at_most_60_lines():
    assert len(text_of(Path("Snakefile")).splitlines()) <= 60


def test_every_module_says_what_it_is():
    silent = [str(path) for path, tree in _trees(*SOURCE, "tests") if tree.body and not ast.get_docstring(tree)]
    assert not silent


def test_the_list_of_algorithms_is_the_list_of_folders():
    folders = {path.name for path in (ROOT / "algorithms").iterdir() if (path / "config.py").exists()}
    assert set(algorithms.NAMES) == folders and len(algorithms.NAMES) == len(folders)


def test_no_algorithm_is_named_outside_its_folder_and_the_settings():
    paths = [
        *python_files("harness", "reports"),
        Path("Snakefile"),
        Path("Makefile"),
        Path("profiles/default/config.yaml"),
    ]
    paths += [path.relative_to(ROOT) for path in (ROOT / "harness" / "rules").glob("*.smk")]
    names = re.compile(rf"\b({'|'.join(algorithms.NAMES)})\b", re.IGNORECASE)
    told = [f"{path}:{number}: {line.strip()}" for path in paths
            for number, line in enumerate(text_of(path).splitlines(), 1) if names.search(line)]  # fmt: skip
    assert not told


def _imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize(
    ("folder", "never"),
    [("algorithms", {"harness", "reports", "tests"}), ("harness", {"reports", "tests"}), ("reports", {"tests"})],
)
def test_dependencies_go_one_way(folder: str, never: set[str]):
    wrong = {str(path): _imported(tree) & never for path, tree in _trees(folder) if _imported(tree) & never}
    assert not wrong


def test_the_reference_implementation_is_used_by_tests_and_benchmarks_alone():
    parts = set(SOURCE) - {"benchmarks"}
    wrong = [str(path) for path, tree in _trees(*parts) if "speculators" in _imported(tree)]
    assert not wrong


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def _tensors_only(load: ast.Call) -> bool:
    return any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in load.keywords)


def test_no_code_of_ours_can_run_code_that_comes_with_a_model():
    wrong = []
    for path, tree in _trees(*SOURCE):
        if _imported(tree) & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}:
            wrong.append(f"{path}: imports a pickler")
        for name, call in _calls(tree):
            if name in ("torch.hub.load", "eval", "exec") or (name == "torch.load" and not _tensors_only(call)):
                wrong.append(f"{path}:{call.lineno}: {name}")
            for keyword in call.keywords:
                if keyword.arg in ("trust_remote_code", "allow_pickle") and ast.unparse(keyword.value) != "False":
                    wrong.append(f"{path}:{call.lineno}: {keyword.arg}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value == "--trust-remote-code":
                wrong.append(f"{path}:{node.lineno}: --trust-remote-code")
    assert not wrong


def test_nothing_listens_beyond_this_machine():
    wrong = [f"{path}:{node.lineno}" for path, tree in _trees() for node in ast.walk(tree)
             if isinstance(node, ast.Constant) and node.value in ("0.0.0.0", "::")]  # fmt: skip
    assert not [place for place in wrong if not place.startswith("tests/guards/")]


def test_ruff_has_nothing_to_say():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "."], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_types_agree():
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
