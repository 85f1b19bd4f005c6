"""The command, what it writes beside the checkpoint, and vLLM's own configuration for what the format cannot hold."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import torch

import algorithms
from algorithms.foreign import plain_name
from harness.checkpoint import __main__ as command
from harness.checkpoint import read_checkpoint
from harness.checkpoint.convert.layouts import LAYOUTS
from harness.checkpoint.release import read_record
from harness.errors import UserError
from harness.files import file_sha256
from harness.verifiers.weights import load_weights
from tests import toy
from tests.harness.checkpoint.convert import foreign_models as foreign
from tests.harness.checkpoint.convert.test_equality import CASES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toy.write_verifier(tmp_path_factory.mktemp("verifier"))


def run(monkeypatch, *arguments) -> int:
    monkeypatch.setattr(sys, "argv", ["checkpoint", "convert", *map(str, arguments)])
    return command.main()


def test_the_report_says_where_every_tensor_went(folder, tmp_path, monkeypatch, capsys):
    source = foreign.fused(foreign.specforge_eagle3(size=toy.VOCABULARY, eagle_config=None))
    source.tensors |= {"embed_tokens.weight": load_weights(folder).embedding_VH.clone(), "fc.bias": torch.zeros(64)}
    path, out = source.write(tmp_path / "source"), tmp_path / "out"
    options = ("--verifier", folder, "--verifier-name", "models/toy", "--out", out, "--aux-layers", "1,3,5")
    assert run(monkeypatch, path, *options) == 0
    report = json.loads((out / "conversion.json").read_text())
    told = {name.partition(" [")[0] for name in report["tensors"]}
    assert told == set(source.tensors)
    left = {name: went["left_out"] for name, went in report["tensors"].items() if "left_out" in went}
    assert left.keys() == {"embed_tokens.weight", "fc.bias", "d2t", "t2d"}
    assert left["embed_tokens.weight"] == "the verifier's own: compared"
    moved = [new for went in report["tensors"].values() for new in went.get("to", [])]
    assert sorted([*moved, *report["made"]]) == sorted(read_checkpoint(out)[1])
    assert report["layout"] == "specforge-eagle3" and report["answers"]["aux_layers"] == [1, 3, 5]
    assert report["source"]["sha256"]["model.safetensors"] == file_sha256(path / "model.safetensors")
    assert report["verifier"] == {"name": "models/toy", "config_sha256": file_sha256(folder / "config.json")}
    assert "torch" in report["versions"] and str(tmp_path) not in json.dumps(report)
    record = read_record(out)
    assert record is not None and record.says_where_from and record.source["layout"] == "specforge-eagle3"
    printed = capsys.readouterr().out
    assert "fc.bias: all zeros: it adds nothing" in printed and f"serve it: vllm serve {out}" in printed


def test_what_belongs_to_the_source_is_kept_and_said(folder, tmp_path, monkeypatch):
    source = foreign.specforge_eagle3(rms_norm_eps=1e-6)
    out = tmp_path / "out"
    run(monkeypatch, source.write(tmp_path / "source"), "--verifier", folder, "--verifier-name", "toy", "--out", out)
    kept = {fault["rule"] for fault in json.loads((out / "conversion.json").read_text())["kept_faults"]}
    assert kept == {"rope-of-verifier", "norm-epsilon"}
    layer = read_checkpoint(out)[0]["transformer_layer_config"]
    assert layer["rope_parameters"] == {"rope_type": "default", "rope_theta": 5000.0} and layer["rms_norm_eps"] == 1e-6
    assert layer["max_position_embeddings"] == 512  # the verifier's


def test_only_a_conversion_is_replaced(folder, tmp_path, monkeypatch):
    path = foreign.specforge_eagle3().write(tmp_path / "source")
    options = ("--verifier", folder, "--verifier-name", "toy", "--out")
    with pytest.raises(UserError, match="holds another checkpoint"):
        run(monkeypatch, path, *options, path)
    for _ in range(2):
        assert run(monkeypatch, path, *options, tmp_path / "out") == 0
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes\.txt"):
        run(monkeypatch, path, *options, tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").exists()


def test_a_key_that_changes_nothing_can_be_ignored_by_name(folder, tmp_path, monkeypatch):
    source = foreign.specforge_eagle3(mood="fine")
    path = source.write(tmp_path / "source")
    options = ("--verifier", folder, "--verifier-name", "toy", "--out", tmp_path / "out", "--ignore-key", "mood")
    assert run(monkeypatch, path, *options) == 0
    assert json.loads((tmp_path / "out" / "conversion.json").read_text())["answers"]["ignored_keys"] == ["mood"]


def test_a_first_generation_draft_becomes_vllms_own_configuration(folder, tmp_path, monkeypatch, capsys):
    source = foreign.safeailab_eagle(load_weights(folder), layers=2)
    source.tensors["fc.bias"] = torch.zeros(64)
    source.tensors["layers.0.self_attn.rotary_emb.inv_freq"] = 10000.0 ** (-torch.arange(0, 32, 2) / 32)
    out = tmp_path / "out"
    run(
        monkeypatch,
        source.write(tmp_path / "source"),
        "--verifier",
        folder,
        "--verifier-name",
        "models/toy",
        "--out",
        out,
    )
    written = json.loads((out / "config.json").read_text())
    assert written["architectures"] == ["LlamaForCausalLM"] and written["model_type"] == "llama"
    assert written["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert "speculators_config" not in written and "auto_map" not in written
    report = json.loads((out / "conversion.json").read_text())
    left = {name for name, went in report["tensors"].items() if "left_out" in went}
    assert left == {"fc.bias", "layers.0.self_attn.rotary_emb.inv_freq", "embed_tokens.weight"}
    settings = json.loads(report["serve"].split("--speculative-config ")[1].strip("'"))
    assert settings == {"method": "eagle", "model": "out", "num_speculative_tokens": 3}
    assert report["serve"].startswith("vllm serve models/toy ")
    assert report["serve"].replace('"out"', json.dumps(str(out))) in capsys.readouterr().out


def test_every_layout_becomes_what_the_installed_vllm_serves():
    """Asked of its source: importing it takes seconds."""
    [package] = importlib.util.find_spec("vllm").submodule_search_locations
    known = Path(package, "transformers_utils/configs/speculators/algos.py").read_text()
    through_the_format = set(re.findall(r'@register_speculator\("(\w+)"\)', known))
    ours = {name for name in algorithms.NAMES if importlib.util.find_spec(f"algorithms.{name}.foreign")}
    assert {row.becomes for row in LAYOUTS.values() if not row.native} == ours <= through_the_format
    native = {row.becomes for row in LAYOUTS.values() if row.native}
    assert native == {"eagle"} and not native & through_the_format
    assert '"EagleLlamaForCausalLM"' in Path(package, "model_executor/models/registry.py").read_text()


def test_every_layout_is_recognised_as_itself_alone(folder):
    verifier = load_weights(folder)
    for source in [*(make(verifier) for make in CASES.values()), foreign.safeailab_eagle(verifier)]:
        names = {plain_name(name) for name in source.tensors}
        assert [n for n, row in LAYOUTS.items() if row.recognise(source.config, names)] == [source.layout]


def test_the_page_has_a_row_for_every_layout():
    page = Path(command.__file__).parent / "convert" / "README.md"
    rows = [line.split("|")[1].strip(" `") for line in page.read_text().splitlines() if line.startswith("| `")]
    assert set(LAYOUTS) <= set(rows)
