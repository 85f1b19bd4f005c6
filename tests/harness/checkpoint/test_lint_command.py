"""`python -m harness.checkpoint lint`: exit codes, JSON, drafts from the hub, and what a large draft costs."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.checkpoint import hub
from tests.harness.checkpoint import drafts

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> drafts.Sound:
    return drafts.sound(tmp_path_factory.mktemp("lint"), "eagle3")


@pytest.fixture
def broken(sound, tmp_path) -> Path:
    config = sound.config | {"model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((sound.draft / "model.safetensors").read_bytes())
    return tmp_path


def test_it_exits_0_on_a_sound_draft_and_writes_what_every_rule_said(sound, tmp_path, checkpoint):
    out = tmp_path / "lint.json"
    assert checkpoint("lint", sound.draft, "--verifier", sound.verifier, "--out", out) == 0
    said = json.loads(out.read_text())
    assert said["faults"] == 0
    assert {rule["rule"] for rule in said["rules"]} >= {"missing-tensors", "stop-tokens"}


def test_it_exits_1_on_a_fault_and_names_rule_symptom_and_fix_as_json(broken, checkpoint, capsys):
    assert checkpoint("lint", broken, "--json") == 1
    said = json.loads(capsys.readouterr().out)
    fault = next(rule for rule in said["rules"] if rule["verdict"] == "fault")
    assert fault["rule"] == "top-level-model-type" and fault["symptom"] and fault["fix"] == "remove it"


def test_it_exits_2_on_what_cannot_be_judged(sound, broken, tmp_path, checkpoint, capsys):
    (broken / "model.safetensors").unlink()
    assert checkpoint("lint", broken) == 2
    assert "no model.safetensors" in capsys.readouterr().err
    assert checkpoint("lint", tmp_path / "nowhere") == 2
    assert "no such folder" in capsys.readouterr().err
    assert checkpoint("lint", sound.draft, "--accept", "nonsense") == 2
    assert "use one of" in capsys.readouterr().err


def test_an_accepted_fault_is_no_fault(broken, checkpoint):
    assert checkpoint("lint", broken, "--accept", "top-level-model-type") == 0


def test_without_the_verifiers_weights_its_config_and_tokenizer_are_compared(sound, tmp_path, checkpoint, capsys):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((sound.verifier / name).read_bytes())
    assert checkpoint("lint", sound.draft, "--verifier", tmp_path, "--json") == 0
    said = {rule["rule"]: rule["verdict"] for rule in json.loads(capsys.readouterr().out)["rules"]}
    assert said["stop-tokens"] == said["verifier-sizes"] == "ok"


def test_a_hub_id_without_a_network_is_one_line(checkpoint, capsys):
    assert checkpoint("lint", "someone/a-draft-nobody-has") == 2
    told = capsys.readouterr().err.strip()
    assert told.count("\n") == 0 and "HF_HUB_OFFLINE is set" in told


def test_a_hub_id_gets_its_config_first_then_its_weights_and_never_code(sound, monkeypatch, checkpoint, capsys):
    asked: list[list[str]] = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(sound.draft)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.list_repo_files", lambda name: ["config.json", "weights.pt"])
    monkeypatch.setattr(hub, "_offline", lambda: False)
    assert checkpoint("lint", "someone/draft", "--json") == 1
    found = [rule for rule in json.loads(capsys.readouterr().out)["rules"] if rule["verdict"] == "fault"]
    assert [rule["rule"] for rule in found] == ["pickled-files"]
    assert len(asked) == 2 and not any("safetensors" in pattern for pattern in asked[0])
    assert not any(pattern.endswith((".py", ".bin", "*")) for patterns in asked for pattern in patterns)


def test_a_repository_without_a_draft_costs_no_weights(sound, monkeypatch, checkpoint, capsys):
    asked: list[Any] = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda name, allow_patterns: asked.append(name) or str(sound.verifier)
    )
    assert checkpoint("lint", "someone/a-model") == 2
    assert "no speculators_config" in capsys.readouterr().err and len(asked) == 1


# The sizes of Llama-3.1-8B; its draft is a gigabyte and a half.
LARGE = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
LAYERS = 32  # of the draft, so that it has 8 billion parameters


def write_sparse(path: Path, shapes: dict[str, tuple[int, ...]], tables: dict[str, torch.Tensor]) -> int:
    """A safetensors file whose header is real and whose weights are holes; `tables` hold values. Returns its size."""
    header, place = {}, 0
    for name, shape in shapes.items():
        kind = {torch.int64: ("I64", 8), torch.bool: ("BOOL", 1)}.get(getattr(tables.get(name), "dtype", None))
        dtype, width = kind or ("BF16", 2)
        size = width * int(torch.tensor(shape).prod())
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, table in tables.items():
            out.seek(8 + len(text) + header[name]["data_offsets"][0])
            out.write(table.numpy().tobytes())
        out.truncate(8 + len(text) + place)
    return 8 + len(text) + place


@pytest.fixture
def large(tmp_path, sound) -> Path:
    import algorithms

    config = json.loads(json.dumps(sound.config))
    config |= {"draft_vocab_size": 32000, "target_hidden_size": 4096, "eagle_aux_hidden_state_layer_ids": [2, 16, 29]}
    config["transformer_layer_config"] |= LARGE | {"rope_parameters": ROPE, "num_hidden_layers": LAYERS}
    config["transformer_layer_config"]["layer_types"] = ["full_attention"] * LAYERS
    form = algorithms.load("eagle3").format
    kept = torch.arange(0, 4 * 32000, 4)
    marks = torch.zeros(LARGE["vocab_size"], dtype=torch.bool).index_fill(0, kept, True)
    shapes = form.required_tensors(config) | form.optional_tensors(config)
    size = write_sparse(tmp_path / "model.safetensors", shapes, {"d2t": kept - torch.arange(len(kept)), "t2d": marks})
    assert size > 15e9
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def lint_apart(folder: Path) -> tuple[float, int, str]:
    """(seconds of the processor, peak memory in bytes, what was printed) of the command in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, int(done.stderr.rsplit("peak ", 1)[1]), done.stdout


def test_a_draft_of_8_billion_parameters_is_linted_in_5_seconds_and_a_gigabyte(large, record_property):
    seconds, peak_bytes, told = lint_apart(large)
    if seconds >= 5:  # a crowded machine counts waiting for memory and caches too
        seconds, peak_bytes, told = lint_apart(large)
    record_property("seconds", seconds)
    record_property("peak_bytes", peak_bytes)
    assert seconds < 5
    assert peak_bytes < 1e9
    assert "of the values were looked at" in told


PEAK = """
import sys
sys.argv = ["harness.checkpoint", "lint", sys.argv[1], "--json"]
from harness.checkpoint.__main__ import main
from harness.memory import peak_memory_bytes
code = main()
print("peak", peak_memory_bytes(), file=sys.stderr)
sys.exit(code)
"""


def test_a_path_of_the_wrong_kind_is_one_line_that_calls_an_input_an_input(sound, tmp_path, checkpoint, capsys):
    config = sound.draft / "config.json"
    damaged = tmp_path / "config.json"
    damaged.write_text("[" * 200_000)
    for arguments, said in (
        ((config,), f"{config}: is a file. Fix: give the folder that holds it"),
        (("",), "DRAFT: is empty"),
        ((sound.draft, "--verifier", config), f"{config}: is a file. Fix: give the folder that holds it"),
        ((sound.draft, "--verifier", tmp_path / "nowhere"), "nowhere/config.json: no such file"),
        ((sound.draft, "--verifier", tmp_path), f"{damaged}: not JSON"),
        ((tmp_path,), f"{damaged}: not JSON"),
        ((sound.draft, "--out", "/proc/x"), "/proc/x: cannot be written"),
        ((sound.draft, "--out", tmp_path), f"{tmp_path}: is a folder. Fix: give a file"),
    ):
        assert checkpoint("lint", *arguments) == 2
        told = capsys.readouterr().err.strip()
        assert said in told and "\n" not in told and "partial" not in told and "harness.verifiers" not in told
