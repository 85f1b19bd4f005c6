"""`edit`: another verifier, another number of tokens, another name; never other weights."""

import json
from pathlib import Path

import pytest

from harness.checkpoint import read_checkpoint
from harness.checkpoint.release import read_record
from tests import toy
from tests.harness.checkpoint import drafts


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> drafts.Sound:
    return drafts.sound(tmp_path_factory.mktemp("edit"), "eagle3")


@pytest.fixture(scope="module")
def block(tmp_path_factory) -> drafts.Sound:
    return drafts.sound(tmp_path_factory.mktemp("edit"), "dflash")


def twin(folder: Path, **changes) -> Path:
    """A verifier's folder with config and tokenizer, as the hub gives it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(toy.verifier_config(**changes)))
    toy.write_tokenizer(folder)
    return folder


def test_a_quantised_copy_of_the_verifier_is_named_and_the_weights_are_the_same_file(sound, tmp_path, checkpoint):
    fp8 = twin(tmp_path / "fp8", quantization_config={"quant_method": "fp8"})
    out = tmp_path / "out"
    said = ("edit", sound.draft, "--out", out, "--verifier", "org/toy-FP8", "--verifier-folder", fp8)
    assert checkpoint(*said, "--name", "toy-fp8") == 0
    config = read_checkpoint(out)[0]
    assert config["speculators_config"]["verifier"]["name_or_path"] == "org/toy-FP8"
    assert (out / "model.safetensors").samefile(sound.draft / "model.safetensors")
    record = read_record(out)
    assert record.name == "toy-fp8"
    key = "speculators_config.verifier.name_or_path"
    assert record.edits[-1].changed == {key: ["toy/verifier", "org/toy-FP8"]}
    assert checkpoint("lint", out, "--verifier", fp8) == 0


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"hidden_size": 128}, "verifier-sizes"),
        ({"vocab_size": 400}, "verifier-sizes"),
        ({"num_hidden_layers": 3}, "layer-ids"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope-of-verifier"),
    ],
)
def test_a_verifier_that_the_draft_was_not_made_for_is_refused(sound, tmp_path, checkpoint, capsys, changes, rule):
    other = twin(tmp_path / "other", **changes)
    said = ("edit", sound.draft, "--out", tmp_path / "out", "--verifier", "org/other", "--verifier-folder", other)
    assert checkpoint(*said) == 2
    assert rule in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_refused_rule_can_be_accepted(sound, tmp_path, checkpoint):
    other = twin(tmp_path / "other", rms_norm_eps=1e-6)
    said = ("edit", sound.draft, "--out", tmp_path / "out", "--verifier", "org/other", "--verifier-folder", other)
    assert checkpoint(*said) == 2
    assert checkpoint(*said, "--accept", "norm-epsilon") == 0


def test_fewer_tokens_are_drafted_where_the_draft_goes_one_by_one(sound, tmp_path, checkpoint):
    assert checkpoint("edit", sound.draft, "--out", tmp_path / "out", "--speculative-tokens", "2") == 0
    methods = read_checkpoint(tmp_path / "out")[0]["speculators_config"]["proposal_methods"]
    assert methods == [{"proposal_type": "greedy", "speculative_tokens": 2}]


@pytest.mark.parametrize("tokens", ["0", "2", "5", "200"])
def test_a_number_of_tokens_that_blocks_were_not_trained_for_is_refused(block, tmp_path, checkpoint, capsys, tokens):
    assert checkpoint("edit", block.draft, "--out", tmp_path / "out", "--speculative-tokens", tokens) == 2
    told = capsys.readouterr().err
    assert any(rule in told for rule in ("block-size", "structure", "proposal"))
    assert not (tmp_path / "out").exists()


def test_a_fault_that_was_there_before_does_not_hinder_mending_another(sound, tmp_path, checkpoint):
    source = tmp_path / "source"
    source.mkdir()
    config = json.loads(json.dumps(sound.config)) | {"model_type": "llama"}
    config["speculators_config"]["verifier"]["name_or_path"] = "/home/someone/model"
    (source / "config.json").write_text(json.dumps(config))
    (source / "model.safetensors").write_bytes((sound.draft / "model.safetensors").read_bytes())
    said = ("edit", source, "--out", tmp_path / "out", "--verifier", "org/toy", "--verifier-folder", sound.verifier)
    assert checkpoint(*said) == 0
    assert checkpoint("lint", tmp_path / "out") == 1  # the other fault is still there


def test_edits_are_kept_one_after_another(sound, tmp_path, checkpoint):
    for source, out, tokens in ((sound.draft, "a", "2"), (tmp_path / "a", "b", "1")):
        assert checkpoint("edit", source, "--out", tmp_path / out, "--speculative-tokens", tokens) == 0
    changed = [next(iter(edit.changed.values())) for edit in read_record(tmp_path / "b").edits]
    assert changed == [[3, 2], [2, 1]]


def test_what_cannot_be_done_is_one_line(sound, tmp_path, checkpoint, capsys):
    tmp_path.joinpath("there").mkdir()
    for arguments, said in (
        (("--out", tmp_path / "out"), "nothing to change"),
        (("--out", tmp_path / "there", "--name", "n"), "exists"),
        (("--out", tmp_path / "out", "--verifier", "org/toy"), "HF_HUB_OFFLINE"),
        (("--out", tmp_path / "out", "--verifier", "models/nowhere"), "no such verifier"),
        (("--out", tmp_path / "out", "--verifier", "foo"), "'foo': neither of the form ORG/NAME nor a folder"),
        (("--out", tmp_path / "out", "--verifier", ""), "'': neither of the form"),
        (("--out", tmp_path / "out", "--name", "u/../x"), "--name = 'u/../x': not a name"),
        (("--out", tmp_path / "out", "--name", ".."), "not a name"),
        (("--out", tmp_path / "out", "--speculative-tokens", "99"), "more than 32, which is the most"),
    ):
        assert checkpoint("edit", sound.draft, *arguments) == 2
        told = capsys.readouterr().err.strip()
        assert said in told and "\n" not in told
    assert not (tmp_path / "out").exists()
