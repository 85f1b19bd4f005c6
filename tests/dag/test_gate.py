"""The gate as a target: it needs a committed baseline, runs what is missing, and a regression fails the run."""

from pathlib import Path

import pytest

from tests.dag.conftest import Toy

GATE = """import pathlib, sys
page = pathlib.Path(sys.argv[sys.argv.index("--markdown") + 1])
page.parent.mkdir(parents=True, exist_ok=True)
page.write_text("# Gate")
print("regression: eagle3 acceptance_length")
raise SystemExit(int(pathlib.Path("verdict").read_text()))
"""


def commit_baseline(toy: Toy, target: str) -> None:
    (toy.root / f"reports/published/{target}.baseline.json").write_text("{}")


@pytest.mark.slow
def test_a_target_without_a_baseline_cannot_be_gated_and_the_file_is_named(toy: Toy):
    done = toy.snakemake("-n", "gate_toy_smoke")
    assert done.returncode != 0 and "reports/published/toy_smoke.baseline.json" in done.stdout


@pytest.mark.slow
def test_all_targets_with_a_baseline_are_gated_together(toy: Toy):
    for path in (toy.root / "reports/published").glob("*.baseline.json"):
        path.unlink()
    commit_baseline(toy, "toy_smoke")
    jobs = toy.jobs("gate")
    assert {"judge", "measure", "train"} <= jobs and "report" not in jobs


@pytest.mark.slow
def test_a_regression_fails_the_run_and_says_where_the_verdicts_are(finished_toy: Toy):
    commit_baseline(finished_toy, "toy_smoke")
    (finished_toy.root / "reports/gate.py").write_text(GATE)
    (finished_toy.root / "verdict").write_text("1")
    done = finished_toy.snakemake("--cores", "2", "gate_toy_smoke")
    page = Path("results/toy_smoke/gate/gate.md")
    assert done.returncode == 1 and f"verdicts: {page}" in done.stdout
    assert "| regression: eagle3 acceptance_length" in done.stdout and (finished_toy.root / page).exists()
    (finished_toy.root / "verdict").write_text("0")
    assert finished_toy.snakemake("--cores", "2", "gate_toy_smoke").returncode == 0
    assert finished_toy.jobs("gate_toy_smoke") == set()


@pytest.mark.slow
def test_measurements_alone_are_made_again_in_a_second_checkout(finished_toy: Toy):
    """What docs/environments.md tells to do: the drafts are copied with their times, the measurements are not."""
    for name in ("measured", "match", "parity", "report"):
        (finished_toy.root / "results/toy_smoke" / name).rename(finished_toy.root / f"aside_{name}")
    (finished_toy.root / ".snakemake").rename(finished_toy.root / "aside_snakemake")
    jobs = finished_toy.jobs("reproduce_toy_smoke")
    assert {"measure", "match", "parity", "report"} <= jobs and not jobs & {"train", "capture", "prompts", "verifier"}
