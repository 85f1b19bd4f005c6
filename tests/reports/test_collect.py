"""What a report refuses, and that it says so in one line that names the file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UserError
from reports.collect import load_run, read_published
from reports.rows import make_rows
from tests.reports.synthetic import ALGORITHM, COMMIT, NAME, change, write_extra, write_run

ROOT = Path(__file__).parents[2]
MEASURED = (
    "prompts/sources.json",
    "capture/manifest.json",
    "measured/none/server.json",
    "measured/none/latency.json",
    f"measured/{ALGORITHM}/acceptance.json",
    f"measured/{ALGORITHM}/accuracy.json",
    "match/ngram.json",
    f"parity/{ALGORITHM}.json",
    f"training/{ALGORITHM}/summary.json",
)


def refusal(results: Path) -> str:
    """The message with which the run is refused."""
    with pytest.raises(UserError) as caught:
        load_run(results, NAME)
    message = str(caught.value)
    assert "\n" not in message
    assert "Fix: " in message
    return message


@pytest.mark.parametrize("name", MEASURED)
def test_a_file_without_provenance_is_refused_by_name(results, name):
    change(results / name, lambda content: content.pop("provenance"))
    assert refusal(results).startswith(f"{results / name}: no provenance")


@pytest.mark.parametrize("field", ["commit", "dirty", "versions", "hardware", "seed", "scale", "settings_sha256"])
def test_provenance_that_lacks_a_field_is_refused_with_the_field(results, field):
    change(results / "match/ngram.json", lambda content: content["provenance"].pop(field))
    assert refusal(results).startswith(f"{results / 'match/ngram.json'}: provenance without {field}")


@pytest.mark.parametrize("name", [*MEASURED, f"training/{ALGORITHM}/metrics.jsonl", "measured/ngram/replies.jsonl"])
def test_a_missing_file_is_one_line(results, name):
    (results / name).unlink()
    assert refusal(results).startswith(f"{results / name}: no such file")


@pytest.mark.parametrize("name", [*MEASURED, f"training/{ALGORITHM}/metrics.jsonl", "measured/ngram/replies.jsonl"])
def test_a_file_cut_in_the_middle_is_called_damaged(results, name):
    text = (results / name).read_text()
    (results / name).write_text(text[: len(text) // 2 - 3])
    assert refusal(results).startswith(f"{results / name}: damaged")


def test_bytes_that_are_no_text_are_one_line(results):
    (results / "match/ngram.json").write_bytes(bytes(range(128, 256)))
    assert refusal(results).startswith(f"{results / 'match/ngram.json'}: not text")


def test_a_value_of_a_wrong_type_is_named_with_its_place(results):
    def spoil(content: dict) -> None:
        content["benchmarks"]["word_problems"]["drafts"] = "many"

    change(results / "measured/ngram/acceptance.json", spoil)
    assert "acceptance.json: benchmarks.word_problems.drafts: " in refusal(results)


def test_files_of_different_scales_are_refused(results):
    change(results / "match/ngram.json", lambda content: content["provenance"].update(scale="smoke"))
    assert "match/ngram.json: is smoke, not full" in refusal(results)


def test_a_folder_of_another_scale_than_its_files_is_refused(workplace):
    write_run(workplace / "results" / f"{NAME}_smoke", scale="full")
    assert "is full, not smoke" in refusal(Path("results") / f"{NAME}_smoke")


def test_an_optional_check_brings_its_figures_and_is_refused_without_provenance(results):
    figures = [{"metric": "speedup_k3", "benchmark": "word_problems", "value": 1.4, "low": 1.3, "high": 1.5, "n": 9},
               {"metric": "speedup_k5", "variant": "ngram", "note": "not run: no time"}]  # fmt: skip
    write_extra(results, f"speed/{ALGORITHM}.json", figures)
    rows = make_rows(load_run(results, NAME))
    row = rows.get(ALGORITHM, "speedup_k3", "word_problems")
    assert (row.value, row.low, row.high, row.n, row.unit, row.commit) == (1.4, 1.3, 1.5, 9, "ratio", COMMIT)
    assert rows.get("ngram", "speedup_k5").note == "not run: no time"
    change(results / f"speed/{ALGORITHM}.json", lambda content: content.pop("provenance"))
    assert refusal(results).startswith(f"{results / 'speed' / ALGORITHM}.json: no provenance")


def test_a_run_that_never_was_names_the_command(workplace):
    assert f"snakemake --cores all reproduce_{NAME}" in refusal(Path("results/nowhere"))


def test_an_absent_or_empty_list_of_published_figures_is_no_error(tmp_path):
    assert read_published(tmp_path / "published.yaml") == []
    (tmp_path / "published.yaml").write_text("# nothing is known\n")
    assert read_published(tmp_path / "published.yaml") == []


def test_a_published_figure_without_a_source_is_refused(tmp_path):
    path = tmp_path / "published.yaml"
    path.write_text("- {algorithm: a, metric: acceptance_length, benchmark: gsm8k, value: 2.0}\n")
    with pytest.raises(UserError, match=r"published\.yaml: 0\.source: .*Fix: "):
        read_published(path)


def test_scale_and_settings_of_a_smoke_run_come_from_its_folder(smoke_results):
    run = load_run(smoke_results, NAME)
    assert run.scale == "smoke"
    assert run.reproduction.gates.speedup_c1_min == {ALGORITHM: 0.1}


@pytest.mark.parametrize("arguments", [[], ["publish"]])
def test_the_command_ends_with_one_line_and_exit_code_2(workplace, arguments):
    rest = [] if arguments else ["--reproduction", NAME, "--out", "out"]
    command = [sys.executable, "-m", "reports", *arguments, "--results", "results/nowhere", *rest]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "results/nowhere" in done.stderr
    assert done.stderr.count("\n") == 1


def test_counters_that_contradict_each_other_are_refused(results):
    def spoil(content: dict) -> None:
        next(iter(content["identity_checks"].values()))["per_position_sums_to_accepted"] = False

    change(results / f"measured/{ALGORITHM}/acceptance.json", spoil)
    assert "per position sums to accepted does not hold" in refusal(results)
