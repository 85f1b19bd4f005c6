"""`card`: the model card and the record of where a draft comes from, from the files of a run."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import metadata_load
from safetensors.torch import load_file, save_file

from harness.checkpoint.release import read_record
from tests.harness.checkpoint import drafts

FIELDS = ("reproduction", "variant", "metric", "benchmark", "value", "low", "high", "n", "unit", "scale", "note")
ROWS = [
    ("none", "tokens_per_s_c1", "word_problems", "37.1", "36.4", "37.7", "12", ""),
    ("eagle3", "tokens_per_s_c1", "word_problems", "81.5", "80.1", "82.2", "12", ""),
    ("eagle3", "acceptance_length", "word_problems", "3.34", "3.22", "3.48", "40", ""),
    ("eagle3", "acceptance_length", "gsm8k", "", "", "", "", "not run: no network"),
    ("ngram", "acceptance_length", "word_problems", "1.77", "1.68", "1.86", "40", ""),
]
PROVENANCE = {
    "reproduction": "toy", "target": "toy", "scale": "full", "verifier": "org/toy", "commits": ["a" * 40],
    "dirty": False, "finished_at": "2026-11-29T16:50:18+00:00", "files": {"x": {"sha256": "0"}},
    "hardware": {"cpu": "Some CPU", "cores": 2, "memory_gib": 24.0, "gpus": []},
    "versions": {"vllm": "0.32.0", "torch": "2.13.0"},
}  # fmt: skip
SUMMARY = {
    "steps": 26, "tokens": 27452, "training_rows": 122, "draft_parameters": 7448832, "trainable_parameters": 5089536,
    "settings": {"training": {"seed": 1, "epochs": 2}, "algorithm": {"ttt_steps": 3, "sliding_window": None}},
    "provenance": {"commit": "a" * 40},
}  # fmt: skip
SOURCES = [
    {"source": "word_problems", "split": "train", "rows": 96},
    {"source": "chat", "split": "train", "rows": 10, "id": "org/chat-set"},
    {"source": "gsm8k", "split": "heldout", "rows": 8},
]


def write_results(folder: Path, draft: Path, rows: Any = ROWS, provenance: Any = PROVENANCE) -> Path:
    """What the card reads of results/<target>."""
    for name, content in {
        "provenance.json": provenance,
        "training/eagle3/summary.json": SUMMARY,
        "capture/manifest.json": {
            "rows": 128,
            "supervised_tokens": 6037,
            "shards": [{"sha256": "1"}],
            "verifier": {"id": "org/toy", "sha256": "0123456789abcdef"},
        },
        "prompts/sources.json": {"sources": SOURCES},
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    with (folder / "results.csv").open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(FIELDS)
        for variant, metric, benchmark, value, low, high, n, note in rows:
            table.writerow(["toy", variant, metric, benchmark, value, low, high, n, "", "full", note])
    measured = folder / "drafts" / "eagle3"
    measured.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (measured / name).write_bytes((draft / name).read_bytes())
    return folder


@pytest.fixture
def sound(tmp_path) -> drafts.Sound:
    return drafts.sound(tmp_path, "eagle3")


@pytest.fixture
def results(tmp_path, sound) -> Path:
    return write_results(tmp_path / "results" / "toy", sound.draft)


def test_the_header_is_what_the_hub_reads(sound, results, checkpoint):
    said = ("--results", results, "--license", "apache-2.0", "--repo", "org/toy-draft")
    assert checkpoint("card", sound.draft, *said) == 0
    header = metadata_load(sound.draft / "README.md")
    assert header["base_model"] == "org/toy" or header["base_model"] == "toy/verifier"
    assert header["license"] == "apache-2.0" and header["datasets"] == ["org/chat-set"]
    assert {"speculative-decoding", "speculators", "eagle3"} <= set(header["tags"])


def test_figures_stand_with_interval_base_and_provenance_and_a_gap_with_its_reason(sound, results, checkpoint):
    assert checkpoint("card", sound.draft, "--results", results, "--repo", "org/toy-draft") == 0
    text = (sound.draft / "README.md").read_text()
    assert "| `acceptance_length` | word_problems | 3.34 (3.22 to 3.48) | – | 40 |" in text
    assert "| `tokens_per_s_c1` | word_problems | 81.5 (80.1 to 82.2) | 37.1 (36.4 to 37.7) | 12 |" in text
    assert "not run: no network" in text and "| `speedup_c1` | all | not run" in text
    assert "1.77" not in text  # of another variant
    for said in (
        "2 cores of Some CPU",
        "vLLM 0.32.0",
        "commit aaaaaaaaaaaa",
        "org/toy, its files' SHA-256 0123456789ab",
        "vllm serve org/toy-draft",
    ):
        assert said in text
    assert "Trained on 128 replies" in text and "org/chat-set (train): 10 prompts" in text and "`ttt_steps`: 3" in text
    assert "gsm8k (heldout)" not in text


def test_the_record_says_which_weights_settings_and_run(sound, results, checkpoint):
    assert checkpoint("card", sound.draft, "--results", results) == 0
    record = read_record(sound.draft)
    assert record.says_where_from
    assert record.training["settings"] == SUMMARY["settings"] and record.training["prompts"] == SOURCES
    assert record.results == {key: value for key, value in PROVENANCE.items() if key != "files"}
    assert list(record.weights_sha256) == ["model.safetensors"]


def test_a_table_that_is_not_its_provenances_is_refused(sound, results, checkpoint, capsys):
    (results / "provenance.json").write_text(json.dumps(PROVENANCE | {"table": {"rows": 99, "sha256": "0"}}))
    assert checkpoint("card", sound.draft, "--results", results) == 2
    assert "rows, not the 99 of its provenance" in capsys.readouterr().err


def test_without_results_the_card_says_not_run_and_nothing_is_made_up(sound, checkpoint):
    assert checkpoint("card", sound.draft) == 0
    text = (sound.draft / "README.md").read_text()
    assert "Not run: the card was made without the results of a run." in text
    assert "there is no provenance" in text and "Not recorded here" in text
    assert "license" not in metadata_load(sound.draft / "README.md")
    assert not read_record(sound.draft).says_where_from


def test_what_changed_since_the_measurement_is_told(sound, results, tmp_path, checkpoint):
    out = tmp_path / "out"
    assert checkpoint("edit", sound.draft, "--out", out, "--speculative-tokens", "2", "--name", "toy-2") == 0
    assert checkpoint("card", out, "--results", results) == 0
    text = (out / "README.md").read_text()
    assert "# toy-2" in text
    assert "Changed since it was measured: speculators_config.proposal_methods.0.speculative_tokens: 3, now 2." in text
    assert len(read_record(out).edits) == 1


def test_a_smoke_run_and_uncommitted_changes_are_told(sound, tmp_path, checkpoint):
    provenance = PROVENANCE | {"scale": "smoke", "dirty": True}
    results = write_results(tmp_path / "smoke", sound.draft, provenance=provenance)
    assert checkpoint("card", sound.draft, "--results", results) == 0
    text = (sound.draft / "README.md").read_text()
    assert "A smoke run: its figures mean little." in text and "with uncommitted changes" in text


def test_results_of_other_weights_are_refused(sound, results, tmp_path, checkpoint, capsys):
    other = drafts.write_draft(tmp_path / "other", sound.verifier, "eagle3", seed=5)
    assert checkpoint("card", other, "--results", results) == 2
    assert "measured other weights" in capsys.readouterr().err
    assert not (other / "README.md").exists()


def test_an_unknown_variant_and_a_broken_draft_are_refused(sound, results, checkpoint, capsys):
    assert checkpoint("card", sound.draft, "--results", results, "--variant", "nothing") == 2
    assert "no variant 'nothing'" in capsys.readouterr().err
    config = json.loads((sound.draft / "config.json").read_text()) | {"model_type": "llama"}
    (sound.draft / "config.json").write_text(json.dumps(config))
    assert checkpoint("card", sound.draft) == 2
    assert "top-level-model-type" in capsys.readouterr().err


def test_a_record_of_other_weights_is_refused(sound, checkpoint, capsys):
    assert checkpoint("card", sound.draft) == 0
    tensors = load_file(sound.draft / "model.safetensors")
    save_file(tensors | {"norm.weight": tensors["norm.weight"] + 1}, sound.draft / "model.safetensors")
    assert checkpoint("card", sound.draft) == 2
    assert "speaks of other weights" in capsys.readouterr().err


def test_the_verifiers_licence_is_read_from_its_card(sound, checkpoint):
    (sound.verifier / "README.md").write_text("---\nlicense: mit\n---\n# toy\n")
    assert checkpoint("card", sound.draft, "--verifier", sound.verifier) == 0
    assert metadata_load(sound.draft / "README.md")["license"] == "mit"


def test_a_converted_draft_says_from_what(sound, checkpoint, tmp_path):
    (sound.draft / "conversion.json").write_text(json.dumps({"source": {"name": "org/theirs"}, "layout": "some"}))
    assert checkpoint("edit", sound.draft, "--out", tmp_path / "out", "--name", "taken-over") == 0
    assert checkpoint("card", tmp_path / "out") == 0
    assert read_record(tmp_path / "out").says_where_from
    assert "org/theirs" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda old: b"\xff\xfe\x00" + old, "no results table"),
        (lambda old: old[: len(old) // 2].rpartition(b",")[0], "damaged, 10 of 11 fields"),
        (lambda old: old.replace(b"3.34", b"3.x4"), "eagle3, acceptance_length: '3.x4' is not a number"),
        (lambda old: old.replace(b",high,", b",above,"), "has no column high"),
        (lambda old: b"", "no results table"),
    ],
    ids=["bytes", "cut", "letters", "column", "empty"],
)
def test_a_damaged_table_of_results_is_one_line(sound, results, checkpoint, capsys, change, said):
    table = results / "results.csv"
    table.write_bytes(change(table.read_bytes()))
    assert checkpoint("card", sound.draft, "--results", results) == 2
    told = capsys.readouterr().err.strip()
    assert f"{table}: " in told and said in told and "\n" not in told
    assert not (sound.draft / "README.md").exists()


@pytest.mark.parametrize(("name", "fix"), [("apache2.0", "use apache-2.0"), ("MIT", "use mit"), ("", "or other")])
def test_a_licence_that_the_hub_does_not_know_is_refused(sound, checkpoint, capsys, name, fix):
    assert checkpoint("card", sound.draft, "--license", name) == 2
    told = capsys.readouterr().err.strip()
    assert f"--license = {name!r}: no licence" in told and fix in told and "\n" not in told
    assert not (sound.draft / "README.md").exists()
    assert checkpoint("card", sound.draft, "--license", "other") == 0
