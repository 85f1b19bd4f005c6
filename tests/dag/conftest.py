"""A toy repository: the real Snakefile, rules, profile and reproduction over steps that take no time (`stub.py`)."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEPS = ("verifiers", "data", "capture", "training", "checkpoint", "evaluation", "quantisation")
TARGET = "reproduce_toy_smoke"


@dataclass(frozen=True)
class Toy:
    """The toy repository in `root` and how to run Snakemake there."""

    root: Path

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", *arguments]

    def snakemake(self, *arguments: str, limit_s: float = 120, **environment: str) -> subprocess.CompletedProcess:
        """Run Snakemake to its end; stdout and stderr are joined in `stdout`."""
        return subprocess.run(
            self.command(*arguments), cwd=self.root, env=os.environ | environment, text=True, timeout=limit_s,
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def jobs(self, target: str = TARGET) -> set[str]:
        """Rules that a dry run would run, without the target itself."""
        told = self.snakemake("--dry-run", "--quiet", "host", "--", target).stdout
        if "Nothing to be done" in told:
            return set()
        table = told.partition("Job stats:")[2].partition("\n\n")[0]
        assert table, told
        words = [line.split()[0] for line in table.splitlines() if line and not line.startswith(("job ", "---"))]
        return set(words) - {"total", target}

    def ran(self) -> list[dict]:
        """What the stubs noted, in order of their end."""
        path = self.root / "ran.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def files(self) -> dict[str, int]:
        """Path to time of change of every file but Snakemake's own notes."""
        kept = (path for path in self.root.rglob("*") if path.is_file())
        return {
            str(path.relative_to(self.root)): path.stat().st_mtime_ns
            for path in kept
            if ".snakemake" not in path.parts and "__pycache__" not in path.parts
        }

    def replace(self, name: str, old: str, new: str) -> None:
        """Change one text in one file; an empty `old` appends `new`."""
        path = self.root / name
        content = path.read_text()
        if not old:
            path.write_text(content + new)
            return
        assert old in content, f"{name} no longer holds {old!r}"
        path.write_text(content.replace(old, new, 1))


def _stand_in(command: Path, step: str) -> None:
    """Put the stub before the command's own code, whose imports still say what the step depends on."""
    command.write_text(f'import stub\n\nstub.run("{step}")\nraise SystemExit\n{command.read_text()}')


def copy_repository(folder: Path) -> Path:
    """Copy what a run reads into `folder`, a path with a space in it as people have them; returns the root."""
    root = folder / "toy repository"
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in ("algorithms", "harness", "reports", "profiles", "reproductions"):
        shutil.copytree(ROOT / name, root / name, ignore=ignore)
    shutil.copy(ROOT / "Snakefile", root / "Snakefile")
    return root


def make_toy(folder: Path) -> Toy:
    """A repository whose steps are stubs, with the toy's recipe."""
    root = copy_repository(folder)
    shutil.copy(ROOT / "tests/dag/stub.py", root / "stub.py")
    (root / "reproductions" / "toy").mkdir()
    shutil.copy(ROOT / "tests" / "toy_reproduction.yaml", root / "reproductions" / "toy" / "reproduction.yaml")
    (root / "reproductions" / "toy" / "published.yaml").write_text("[]\n")
    for step in STEPS:
        _stand_in(root / "harness" / step / "__main__.py", step)
    _stand_in(root / "reports" / "__main__.py", "reports")
    return Toy(root)


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    """A toy repository in which nothing ran yet."""
    return make_toy(tmp_path)


@pytest.fixture(scope="module")
def finished_toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A toy repository after a whole run. Tests that change it put it back."""
    toy = make_toy(tmp_path_factory.mktemp("finished"))
    done = toy.snakemake("--cores", "4", TARGET)
    assert done.returncode == 0, done.stdout
    return toy
