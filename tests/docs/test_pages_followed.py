"""The pages followed to the letter in a copy of the code: a new algorithm trains and lints, a new data set is drawn."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import toy
from tests.docs.pages import files
from tests.guards.sources import ROOT
from tests.harness.training.toy_training import TRAINING, make_store

CODE = ("algorithms", "harness", "reports", "reproductions", "Snakefile")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the code that a test may change."""
    for name in CODE:
        source = ROOT / name
        if source.is_file():
            shutil.copy(source, tmp_path / name)
        else:
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def follow(page: str, copy: Path) -> None:
    """Write every file that the page tells its reader to write anew."""
    for name, text in files(Path(page)).items():
        path = copy / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, f"{path} no longer holds {old!r}"
    path.write_text(text.replace(old, new, 1))


def python(copy: Path, *arguments: str) -> subprocess.CompletedProcess:
    """The copy's code on the toy verifier."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, capture_output=True, text=True, timeout=120, check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "CI": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_the_algorithm_of_the_page_trains_and_its_checkpoint_has_no_fault(copy: Path):
    follow("docs/add-an-algorithm.md", copy)
    replace(copy / "algorithms/__init__.py", '"dflash2")', '"dflash2", "one_step")')
    toy.write_verifier(copy / "verifier")
    make_store(copy / "capture", copy / "verifier")
    settings = {"training": TRAINING, "algorithm": {"speculative_tokens": 3, "draft_vocab_size": 64}, "scale": "smoke"}
    python(
        copy, "-m", "harness.training", "--settings", json.dumps(settings), "--algorithm", "one_step", "--verifier",
        "verifier", "--capture", "capture", "--out", "draft", "--state", "state",
    )  # fmt: skip
    summary = json.loads((copy / "state/summary.json").read_text())
    assert summary["settings"]["algorithm"]["ttt_steps"] == 1
    python(copy, "-m", "harness.checkpoint", "lint", "draft", "--verifier", "verifier", "--out", "lint.json")
    assert json.loads((copy / "lint.json").read_text())["faults"] == 0


@pytest.mark.slow
def test_the_generator_of_the_page_is_drawn_into_prompts(copy: Path):
    follow("docs/add-a-data-set.md", copy)
    replace(copy / "harness/data/sources.py", "= {", '= {"sums": sums, ')
    replace(
        copy / "harness/data/sources.py", "import random\n", "import random\n\nfrom harness.data.my_set import sums\n"
    )
    replace(copy / "harness/sections/data.py", "SourceName = Literal[", 'SourceName = Literal["sums", ')
    replace(copy / "harness/sections/evaluate.py", "TaskName = Literal[", 'TaskName = Literal["sums", ')
    toy.write_verifier(copy / "verifier")
    data = {"seed": 1, "train": [{"source": "sums", "rows": 20}], "heldout": [{"source": "sums", "rows": 5}],
            "reply": {"max_new_tokens": 8}}  # fmt: skip
    settings = json.dumps({"data": data, "scale": "smoke"})
    python(copy, "-m", "harness.data", "--settings", settings, "--verifier", "verifier", "--out", "prompts")
    rows = [json.loads(line) for line in (copy / "prompts/heldout.jsonl").read_text().splitlines()]
    assert len(rows) == 5 and all(row["answer"].split("#### ")[1].isdigit() for row in rows)
