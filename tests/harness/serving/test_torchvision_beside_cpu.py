"""A torchvision that describes operators which cannot load is made importable; any other fault is told."""

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.serving.torchvision_beside_cpu import DESCRIPTIONS, mend

REFUSES = 'raise RuntimeError("operator torchvision::nms does not exist")\n'


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in that is found before the installed one."""
    folder = tmp_path / "torchvision"
    (folder / "transforms").mkdir(parents=True)
    (folder / "__init__.py").write_text("from torchvision import _meta_registrations\n")
    (folder / DESCRIPTIONS).write_text(REFUSES)
    for name in ("__init__", "v2"):
        (folder / "transforms" / f"{name}.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return folder


def test_descriptions_of_operators_that_cannot_load_are_taken_out_once(package: Path):
    assert mend(package) == "torchvision imports, without its compiled operators"
    assert mend(package) == "torchvision imports"


def test_a_build_that_imports_is_left_alone(package: Path):
    (package / DESCRIPTIONS).write_text("whole = True\n")
    assert mend(package) == "torchvision imports"
    assert (package / DESCRIPTIONS).read_text() == "whole = True\n"


def test_another_fault_is_told(package: Path):
    (package / "transforms" / "v2.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(UserError, match="cannot be imported beside this PyTorch"):
        mend(package)
