"""A made-up run in a folder of its own, which is also the current folder, for every test of reports."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from reports import figures
from reports.__main__ import report_main
from tests.reports.synthetic import NAME, write_reproduction, write_run


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder with the toy reproduction."""
    monkeypatch.chdir(tmp_path)
    write_reproduction(tmp_path / "reproductions")
    yield tmp_path


@pytest.fixture
def results(workplace: Path) -> Path:
    """A complete full run of the toy reproduction; relative, as the rules give it."""
    write_run(workplace / "results" / NAME)
    return Path("results") / NAME


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without figures: they take most of the time, and many tests look at the text alone."""
    monkeypatch.setattr(figures, "all_figures", lambda run, results: {})


@pytest.fixture
def smoke_results(workplace: Path) -> Path:
    """A complete smoke run."""
    write_run(workplace / "results" / f"{NAME}_smoke", scale="smoke")
    return Path("results") / f"{NAME}_smoke"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full run with its report, made once and only read; the absolute path of its results folder."""
    place = tmp_path_factory.mktemp("finished")
    write_reproduction(place / "reproductions")
    results = Path("results") / NAME
    with contextlib.chdir(place):
        write_run(results)
        report_main(["--results", str(results), "--reproduction", NAME, "--out", str(results / "report")])
    return place / results
