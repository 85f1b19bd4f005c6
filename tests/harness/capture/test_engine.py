"""Replies and states from vLLM itself, compared with transformers position by position (float32, toy verifier)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from harness.capture.preflight import check_states
from harness.capture.store import Document
from harness.verifiers.weights import load_weights
from tests.harness.capture.reference import LAYER_IDS, Reference
from tests.toy import TURN_END_ID

pytestmark = pytest.mark.slow

NEW_TOKENS = 12
LONG_NEW_TOKENS = 70
FIVE = [[40 + i, *range(60, 60 + length - 1)] for i, length in enumerate([3, 17, 5, 33, 9])]
PREFIX = list(range(100, 140))
BATCHES = [
    FIVE,  # together
    *[[tokens] for tokens in FIVE],  # alone
    FIVE[::-1],  # in another order, on an engine that has seen them
    [PREFIX],
    [[*PREFIX, *range(90, 98)], PREFIX],  # a shared prefix
]


class Written:
    """What one process with an engine wrote."""

    def __init__(self, folder: Path, verifier: Path, **job: Any) -> None:
        folder.mkdir()
        self.batches, self.images = job["batches"], job.get("images")
        content = {"verifier": str(verifier), "layer_ids": LAYER_IDS, "max_new_tokens": NEW_TOKENS, "blocks": 64}
        content |= {"workers": 1} | job
        (folder / "job.json").write_text(json.dumps(content))
        command = [sys.executable, "-m", "tests.harness.capture.drive_engine", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        facts = json.loads((folder / "written.json").read_text())
        self.preempted, self.rows, self.live = facts["preempted"], facts["rows"], facts["live"]
        self.alone = facts["alone"]
        self.states = load_file(folder / "written.safetensors")

    def input_ids(self, name: str) -> list[int]:
        """Prompt and reply without the final token."""
        batch, row = map(int, name.split("-"))
        return (self.batches[batch][row] + self.rows[name][0])[:-1]


@pytest.fixture(scope="module")
def written(verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("engine") / "job", verifier, batches=BATCHES, max_num_seqs=4)


def relative_error(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm(dim=-1).div(b.norm(dim=-1)).max())


def test_every_row_has_the_state_of_its_own_token_and_layer(written: Written, reference: Reference) -> None:
    for name, states in written.states.items():
        tokens = written.input_ids(name)
        assert states.shape == (len(tokens), len(LAYER_IDS), 64), name
        theirs, logits = reference.states(tokens, LAYER_IDS)
        assert relative_error(states, theirs) < 1e-4, name
        reply = written.rows[name][0]
        assert logits[-len(reply) :].argmax(-1).tolist() == reply, name


def test_a_batch_gives_what_single_requests_give(written: Written) -> None:
    for i in range(5):
        alone = written.states[f"{1 + i}-0"]
        for together in (f"0-{i}", f"6-{4 - i}"):
            assert written.rows[together] == written.rows[f"{1 + i}-0"]
            assert relative_error(written.states[together], alone) < 1e-5


def test_a_shared_prefix_shortens_nothing(written: Written) -> None:
    first, longer, again = written.states["7-0"], written.states["8-0"], written.states["8-1"]
    assert len(longer) == len(written.input_ids("8-0")) > len(PREFIX) + 8
    assert relative_error(longer[: len(PREFIX)], first[: len(PREFIX)]) < 1e-5
    assert relative_error(again, first) < 1e-5


def test_replies_end_at_the_turn_or_at_the_limit_and_say_which(written: Written) -> None:
    for tokens, reason in written.rows.values():
        assert (reason == "stop") == (tokens[-1] == TURN_END_ID)
        assert (reason == "length") == (len(tokens) == NEW_TOKENS and tokens[-1] != TURN_END_ID)


def test_the_preflight_passes_on_what_the_engine_wrote(written: Written, verifier: Path) -> None:
    documents = []
    for name in ("0-0", "0-3", "8-0"):
        tokens = torch.tensor(written.input_ids(name))
        documents.append(Document(name, tokens, written.states[name], torch.ones(len(tokens)).bool(), 0))
    figures = check_states(documents, verifier, load_weights(verifier), LAYER_IDS, "float32")
    assert figures["argmax_differs"] == 0


def test_requests_that_were_preempted_have_the_right_states(
    verifier: Path, reference: Reference, tmp_path: Path
) -> None:
    batches = [[[40 + i, *range(60, 60 + 95)] for i in range(4)]]
    squeezed = Written(
        tmp_path / "job", verifier, batches=batches, max_num_seqs=4, blocks=7, max_new_tokens=LONG_NEW_TOKENS
    )
    assert squeezed.preempted > 0
    assert any(len(squeezed.input_ids(name)) > 128 for name in squeezed.states)
    for name, states in squeezed.states.items():
        theirs, _ = reference.states(squeezed.input_ids(name), LAYER_IDS)
        assert relative_error(states, theirs) < 1e-4, name


def test_the_live_engine_caches_no_prefix_and_cuts_no_prompt(written: Written) -> None:
    assert written.live == {"prefix_caching": False, "chunked_prefill": False}


def test_an_engine_that_stopped_recording_gives_the_same_replies_alone(written: Written) -> None:
    for i, prompt in enumerate(FIVE):
        token_ids, shape = written.alone[f"alone-{i}"]
        assert token_ids == written.rows[f"0-{i}"][0]
        assert shape == [len(prompt) + len(token_ids) - 1, 0, 0]


def test_two_workers_that_hold_the_model_together_give_the_same(
    written: Written, verifier: Path, reference: Reference, tmp_path: Path
) -> None:
    split = Written(tmp_path / "job", verifier, batches=[FIVE], max_num_seqs=4, workers=2)
    for name, states in split.states.items():
        assert split.rows[name] == written.rows[name]
        theirs, _ = reference.states(split.input_ids(name), LAYER_IDS)
        assert relative_error(states, theirs) < 1e-4, name
