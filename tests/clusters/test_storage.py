"""Finished results in a shared folder, through Snakemake's storage plugin `fs`.

`make test-storage` runs it; needs rsync and the plugins of `make setup CLUSTER=storage`.
"""

import importlib.util
import shutil
from pathlib import Path

import pytest

from tests.clusters.small import two_drafts
from tests.dag.conftest import TARGET

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("rsync") is None, reason="not installed: rsync"),
    pytest.mark.skipif(
        importlib.util.find_spec("snakemake_storage_plugin_fs") is None, reason="run make setup CLUSTER=storage"
    ),
]
REPORT = ("report/report.html", "report/report.md", "results.csv", "provenance.json")
DRAFTS = [f"drafts/{name}/{file}" for name in ("eagle3", "peagle") for file in ("config.json", "model.safetensors")]


def test_report_and_drafts_of_a_finished_run_are_shared_once_and_anew_when_they_change(tmp_path: Path):
    toy, shared = two_drafts(tmp_path), tmp_path / "shared"
    toy.replace("reproductions/toy/reproduction.yaml", "\n  gpus: 1\n  gpu_memory_gb: 8", "")
    assert toy.snakemake("--cores", "4", TARGET).returncode == 0
    results = toy.root / "results/toy_smoke"
    for name in REPORT:
        (results / name).write_text(f"this is {name}")
    words = ("--cores", "1", "share_toy_smoke")
    done = toy.snakemake(*words, SPECPROOF_SHARED=str(shared))
    assert done.returncode == 0, done.stdout[-4000:]
    kept = {str(path.relative_to(shared / "toy_smoke")) for path in shared.rglob("*") if path.is_file()}
    assert kept == {*REPORT, *DRAFTS}
    assert (shared / "toy_smoke/results.csv").read_text() == "this is results.csv"
    assert "Nothing to be done" in toy.snakemake(*words, SPECPROOF_SHARED=str(shared)).stdout
    (results / "report/gates_met").write_text("met again")
    (results / "results.csv").write_text("new figures")
    assert toy.snakemake(*words, SPECPROOF_SHARED=str(shared)).returncode == 0
    assert (shared / "toy_smoke/results.csv").read_text() == "new figures"
