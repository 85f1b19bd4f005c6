"""The project's own files, for the guards: what is kept in the repository or about to be."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("algorithms", "harness", "reports", "benchmarks", "tests")


@cache
def kept_files() -> tuple[Path, ...]:
    """Every file that git tracks or would add, relative to the root."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return tuple(sorted({Path(name) for name in names if name and (ROOT / name).is_file()}))


def python_files(*folders: str) -> list[Path]:
    """Python files under `folders` (all code by default), relative to the root."""
    return [path for path in kept_files() if path.suffix == ".py" and path.parts[0] in (folders or CODE)]


def text_of(path: Path) -> str:
    """Text of a kept file; undecodable bytes are replaced."""
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")
