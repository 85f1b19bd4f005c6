"""Versions of the code that a step runs: hashes that change when what it does could change, and not with its comments.

Called by `harness/rules/common.smk`, which puts them among a rule's params, so that changed code runs its step again.
A step's code is the module that it starts with and everything of ours that this imports, to the last import. Left out
are the modules directly under harness/ and the list of algorithms: they move settings, files and messages, which reach
a step by other ways.
"""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGES = ("algorithms", "harness", "reports")
PLUMBING = (Path("harness"), Path("algorithms/__init__.py"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _file_of(module: str) -> Path | None:
    path = Path(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.exists()), None)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _imports(path: Path) -> Iterator[str]:
    """Names of our modules that the file imports anywhere in it, and of the packages around them."""
    names = set()
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    for name in names:
        parts = name.split(".")
        if parts[0] in PACKAGES:
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


@cache
def _reached(modules: tuple[str, ...]) -> frozenset[Path]:
    """Source files of the modules and of all that they import; unknown names (functions, classes) are passed over."""
    waiting, files = list(modules), set()
    while waiting:
        path = _file_of(waiting.pop())
        if path is not None and path not in files:
            files.add(path)
            waiting += _imports(path)
    return frozenset(path for path in files if path not in PLUMBING and path.parent not in PLUMBING)


def _meaning(path: Path) -> bytes:
    """What a file does: Python without comments, layout and docstrings; the bytes of any other file."""
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_text(), str(path))
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.dump(tree).encode()


def _data_files(folder: Path) -> list[Path]:
    """Templates, task files and the like that stand beside the code."""
    kept = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [path for path in kept if path.suffix not in (".py", ".md", ".smk")]


@cache
def versions(*modules: str) -> list[str]:
    """`folder@hash` of every folder whose code the modules reach.

    Args:
        modules: dotted names of the modules that the step starts with.

    Raises:
        ValueError: a name is no module of ours.
    """
    if unknown := [module for module in modules if _file_of(module) is None]:
        raise ValueError(f"{', '.join(unknown)}: no such module. Fix: name the file that the rule's command starts")
    by_folder: dict[Path, set[Path]] = {}
    for path in _reached(modules):
        by_folder.setdefault(path.parent, set()).add(path)
    found = []
    for folder in sorted(by_folder):
        digest = hashlib.sha256()
        for path in sorted([*by_folder[folder], *(_data_files(folder) if folder.name not in PACKAGES else [])]):
            digest.update(path.as_posix().encode() + b"\0" + _meaning(path) + b"\0")
        found.append(f"{folder}@{digest.hexdigest()[:12]}")
    return found
