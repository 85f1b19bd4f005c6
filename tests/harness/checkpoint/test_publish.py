"""`publish`: a dry run by default; with --yes exactly the draft's files, and the token only from the environment."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from harness.checkpoint import publish
from tests.harness.checkpoint import drafts
from tests.harness.checkpoint.test_card import write_results

TOKEN = "hf_" + "S3cretS3cretS3cret"


class FakeHub:
    """Takes the calls of `publish` and keeps them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple, dict[str, Any]]] = []
        self.token = ""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            inspect.signature(getattr(HfApi, name)).bind(self, *given, **named)  # the real one would take them
            self.calls.append((name, given, named))
            return type("Commit", (), {"commit_url": "https://hub.example/commit/1"})

        return call


@pytest.fixture
def fake(monkeypatch) -> FakeHub:
    made = FakeHub()

    def client(token: str) -> FakeHub:
        made.token = token
        return made

    monkeypatch.setattr(publish, "_client", client)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return made


@pytest.fixture
def ready(tmp_path, checkpoint) -> Path:
    """A draft that names its verifier by hub id, with card and provenance."""
    sound = drafts.sound(tmp_path, "eagle3")
    results = write_results(tmp_path / "results" / "toy", sound.draft)
    out = tmp_path / "release"
    said = ("--verifier", "org/toy", "--verifier-folder", sound.verifier)
    assert checkpoint("edit", sound.draft, "--out", out, *said) == 0
    assert checkpoint("card", out, "--results", results, "--repo", "org/toy-draft") == 0
    return out


def test_a_dry_run_shows_files_sizes_verdict_and_card_and_uploads_nothing(ready, fake, checkpoint, capsys):
    (ready / "notes.txt").write_text("mine")
    assert checkpoint("publish", ready, "--repo", "org/toy-draft") == 0
    told = capsys.readouterr()
    for name in ("config.json", "model.safetensors", "README.md", "provenance.json"):
        assert name in told.out
    assert f"{(ready / 'model.safetensors').stat().st_size:,}" in told.out
    assert "left out: notes.txt" in told.out and "no fault" in told.out and "# toy-draft" in told.out
    assert "nothing was uploaded" in told.err
    assert fake.calls == []


def test_yes_uploads_the_files_of_the_draft_alone_with_the_token_of_the_environment(ready, fake, checkpoint, capsys):
    (ready / "notes.txt").write_text("mine")
    assert checkpoint("publish", ready, "--repo", "org/toy-draft", "--yes", "--private") == 0
    (made, given, options), (uploaded, _, upload) = fake.calls
    assert (made, given, options["private"]) == ("create_repo", ("org/toy-draft",), True)
    assert uploaded == "upload_folder" and upload["repo_id"] == "org/toy-draft"
    assert set(upload["allow_patterns"]) == {"config.json", "model.safetensors", "README.md", "provenance.json"}
    assert fake.token == TOKEN
    told = capsys.readouterr()
    assert TOKEN not in told.out + told.err and "https://hub.example/commit/1" in told.err


def test_yes_without_a_token_is_one_line(ready, fake, checkpoint, monkeypatch, capsys):
    monkeypatch.delenv("HF_TOKEN")
    assert checkpoint("publish", ready, "--repo", "org/toy-draft", "--yes") == 2
    assert "HF_TOKEN is not set" in capsys.readouterr().err
    assert fake.calls == []


def without(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


def with_config(**keys: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text()) | keys
        (folder / "config.json").write_text(json.dumps(content))

    return change


def local_verifier(folder: Path) -> None:
    content = json.loads((folder / "config.json").read_text())
    content["speculators_config"]["verifier"]["name_or_path"] = "models/toy"
    (folder / "config.json").write_text(json.dumps(content))


def no_origin(folder: Path) -> None:
    record = json.loads((folder / "provenance.json").read_text())
    del record["training"]
    (folder / "provenance.json").write_text(json.dumps(record))


def mention(text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "README.md").write_text((folder / "README.md").read_text() + text)


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (with_config(model_type="llama"), 1, "top-level-model-type"),
        (local_verifier, 2, "names its verifier by the folder 'models/toy'"),
        (without("README.md"), 2, "no README.md"),
        (without("provenance.json"), 2, "nothing says how its weights came to be"),
        (no_origin, 2, "nothing says how its weights came to be"),
        (mention("\nsee /home/someone/run"), 2, "holds a path of a machine"),
        (mention(f"\n{TOKEN}"), 2, "holds a token"),
    ],
)
def test_what_is_not_fit_to_be_published_is_refused(ready, fake, checkpoint, capsys, change, code, said):
    change(ready)
    assert checkpoint("publish", ready, "--repo", "org/toy-draft", "--yes") == code
    told = capsys.readouterr()
    assert said in told.out + told.err
    assert TOKEN not in told.out + told.err
    assert fake.calls == []


@pytest.mark.parametrize("repo", ["toy-draft", "org/toy/draft", "/org/toy"])
def test_a_repository_is_owner_and_name(ready, fake, checkpoint, capsys, repo):
    assert checkpoint("publish", ready, "--repo", repo) == 2
    assert "ORG/NAME" in capsys.readouterr().err


def test_what_the_hub_answers_is_one_line_without_the_token(ready, checkpoint, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)  # a real client, and no network
    assert checkpoint("publish", ready, "--repo", "org/toy-draft", "--yes") == 2
    told = capsys.readouterr()
    assert "HF_HUB_OFFLINE is set" in told.err and TOKEN not in told.out + told.err
