"""`lint --deep`: what equal and unequal steps mean, and a draft that knows a reply by heart, served by vLLM."""

import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.checkpoint import deep
from harness.checkpoint.examine import examine
from harness.errors import UserError
from harness.evaluation.client import Answer
from harness.serving import ServerFailed
from tests import toy
from tests.harness.checkpoint import drafts
from tests.interop.serving import needs_cpu_build

SERVED = [[3, 2], [0, 1, 3], [2]]


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> drafts.Sound:
    return drafts.sound(tmp_path_factory.mktemp("deep"), "eagle3")


def test_equal_steps_are_a_note_with_both_lengths():
    found = deep.verdict(SERVED, SERVED)
    assert (found.rule, found.verdict) == ("served-drafts", "note")
    assert found.found == "served 2.83 and predicted 2.83 tokens a step; 3 of 3 replies alike"


@pytest.mark.parametrize(
    ("predicted", "suspect"),
    [([[3, 2], [1, 1, 3], [2]], "the first draft is wrong already"), ([[3, 3], [0, 1, 3], [3]], "later drafts only")],
)
def test_one_other_step_is_a_fault_that_says_where_to_look(predicted, suspect):
    found = deep.verdict(predicted, SERVED)
    assert found.verdict == "fault" and suspect in found.fix


def test_nothing_accepted_is_said_to_compare_nothing():
    nothing = [[0, 0], [0]]
    found = deep.verdict(nothing, nothing)
    assert found.verdict == "note" and "no draft was accepted" in found.found


def test_without_a_folder_of_the_verifier_there_is_one_line(sound):
    with pytest.raises(UserError, match=r"toy/verifier: no such verifier folder\. Fix: pass --verifier"):
        deep.served(str(sound.draft), sound.config, None)


def test_a_server_that_stops_is_a_fault_with_its_last_word(sound, monkeypatch):
    def stopped(*_):
        raise ServerFailed("draft: the server ended with code 1 after 3 s. Fix: see log; it ends with:\nValueError: no")

    monkeypatch.setattr(deep, "_replies", stopped)
    (found,) = deep.served(str(sound.draft), sound.config, sound.verifier)
    assert found.verdict == "fault" and found.found == "the server stopped: ValueError: no"


def test_a_draft_with_faults_is_not_served(sound, tmp_path, checkpoint, capsys):
    config = sound.config | {"model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((sound.draft / "model.safetensors").read_bytes())
    assert checkpoint("lint", tmp_path, "--deep", "--json") == 1
    said = json.loads(capsys.readouterr().out)["rules"][-1]
    assert (said["rule"], said["verdict"], said["fix"]) == ("served-drafts", "not checked", "mend the faults first")


class FakeChat:
    """Replies of four tokens; the last step accepts one draft in them and one past the end."""

    def __init__(self, url, model, max_new_tokens, seed):
        self.asked = (url, model, max_new_tokens)

    def ask_all(self, prompts, concurrency, title):
        assert concurrency == 1
        spec = {"accepted_per_step": [0, 0, 2], "drafted_per_step": [3, 3, 3]}
        return [Answer(name, prompt_token_ids=[257, 97], token_ids=[5, 6, 7, 8], spec=spec) for name, _ in prompts]


def test_the_draft_is_served_in_float32_beside_the_given_verifier_and_nothing_is_left(sound, monkeypatch):
    seen = {}

    @contextmanager
    def server(model, serve, log):
        config = json.loads((Path(model) / "config.json").read_text())
        seen.update(folder=Path(model), serve=serve, verifier=config["speculators_config"]["verifier"])
        assert (Path(model) / "model.safetensors").exists()
        yield SimpleNamespace(report="said", url="http://x", model_name="draft")

    monkeypatch.setattr(deep, "running_server", server)
    monkeypatch.setattr(deep, "expect", lambda *given: seen.update(expected=given))
    monkeypatch.setattr(deep, "Chat", FakeChat)
    monkeypatch.setattr(deep, "predict", lambda rows, folder, verifier, dtype: ([[0, 0, 1]] * len(rows), 3))
    (found,) = deep.served(str(sound.draft), sound.config, sound.verifier)
    assert found.verdict == "note" and f"{len(deep.PROMPTS)} of {len(deep.PROMPTS)} replies alike" in found.found
    assert seen["serve"].dtype == "float32" and seen["serve"].max_num_seqs == 1
    assert seen["verifier"]["name_or_path"] == str(sound.verifier.resolve())
    assert seen["expected"] == ("said", "eagle3", 3, str(sound.verifier), 512)
    assert not seen["folder"].parent.exists()


@pytest.mark.slow
@needs_cpu_build
def test_a_draft_that_knows_the_replies_is_accepted_by_vllm_as_the_reference_loop_says(tmp_path, monkeypatch):
    from tests.interop.test_memorised_reply import greedy_document, learn_by_heart

    verifier = toy.write_verifier(tmp_path / "verifier")
    prompt = "abc"
    monkeypatch.setattr(deep, "PROMPTS", (prompt,))
    monkeypatch.setattr(deep, "REPLY_TOKENS", 25)
    monkeypatch.setattr(deep, "MAX_MODEL_LEN", 256)
    turns = f"{toy.TURN_START}user\n{prompt}{toy.TURN_END}\n{toy.TURN_START}assistant\n"
    ids = toy.tokenizer().encode(turns).ids
    torch.set_num_threads(1)
    from harness.verifiers.weights import load_weights

    draft = learn_by_heart("eagle3", greedy_document(verifier, ids), load_weights(verifier))
    folder = toy.write_draft(tmp_path / "draft", draft, "toy/verifier")
    (found,) = deep.served(str(folder), examine(str(folder)).config, verifier)
    assert found.verdict == "note" and "1 of 1 replies alike" in found.found
    assert "served 4.00" in found.found
