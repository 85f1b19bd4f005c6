"""Against real vLLM: another draft length than the checkpoint's, a verifier in 8 bits, prompts past all positions.

A toy verifier with drafts of random weights; what they say means nothing, but drafts that are right do occur.
"""

import json
from pathlib import Path

import pytest

from harness.evaluation.client import Chat
from harness.evaluation.replies import Prompts
from harness.evaluation.settings import SweepSettings
from harness.evaluation.sweep import sweep
from harness.evaluation.verification import verification
from harness.files import write_json, write_jsonl
from harness.quantisation.folders import quantise_verifier, redirect_draft
from harness.sections.evaluate import Latency
from harness.sections.serve import Serve
from harness.serving import expect, running_server
from harness.verifiers.weights import load_weights
from tests import toy
from tests.interop.test_memorised_reply import TOKENS, greedy_document, learn_by_heart

pytestmark = pytest.mark.slow

SERVE = Serve(dtype="bfloat16", max_model_len=256, max_num_seqs=4, kv_cache_gb=0.25)
REPLY_TOKENS, POSITIONS = 24, 128
SHORT = [
    {"id": f"p{i}", "source": "word_problems", "messages": [{"role": "user", "content": f"{i} and {7 * i}?"}]}
    for i in range(4)
]
LONG = [{"id": "long", "source": "long_prompts", "messages": [{"role": "user", "content": "x" * POSITIONS}]}]


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    folder = toy.write_verifier(tmp_path_factory.mktemp("lengths") / "toy")
    write_json(folder / "verifier.json", {"id": "toy", "sha256": "ab" * 32, "provenance": {"scale": "full"}})
    return folder


def draft_of(verifier, algorithm, **settings):
    """A draft of random weights that names its verifier by its absolute path."""
    folder = verifier.parent / algorithm
    draft = toy.random_draft(load_weights(verifier), algorithm=algorithm, **settings)
    toy.write_draft(folder, draft, "models/toy", algorithm)
    redirect_draft(folder, verifier, folder)
    return folder


def test_a_draft_is_served_at_another_length_and_measured_there(verifier, tmp_path: Path):
    write_jsonl(tmp_path / "heldout.jsonl", SHORT)
    settings = SweepSettings(
        serve=SERVE, num_speculative_tokens=5, method="eagle3", acceptance_concurrency=2,
        latency=Latency(benchmark="word_problems", concurrency=[1], requests=3, max_new_tokens=REPLY_TOKENS),
        bootstrap_resamples=200, seed=0, scale="smoke",
    )  # fmt: skip
    draft = draft_of(verifier, "eagle3", speculative_tokens=2)
    sweep(settings, "eagle3", draft, verifier, tmp_path / "heldout.jsonl", tmp_path / "k5.json")
    found = json.loads((tmp_path / "k5.json").read_text())
    assert found["num_speculative_tokens"] == 5
    assert all(found["identity_checks"].values())
    assert len(found["acceptance"]["accepted_per_position"]) == 5
    assert {row["id"] for row in found["replies"]} == {
        record["id"] for record in found["latency"]["concurrency"]["1"]["records"]
    }
    for row in found["replies"]:
        assert max(row["spec"]["drafted_per_step"]) == 5


def test_steps_without_a_draft_are_timed_at_every_length(verifier, tmp_path: Path):
    write_jsonl(tmp_path / "heldout.jsonl", SHORT)
    settings = SweepSettings(
        serve=SERVE, num_speculative_tokens=4, method=None, acceptance_concurrency=2,
        latency=Latency(benchmark="word_problems", concurrency=[1, 2], requests=4, max_new_tokens=REPLY_TOKENS),
        bootstrap_resamples=200, seed=0, scale="smoke",
    )  # fmt: skip
    verification(settings, verifier, tmp_path / "heldout.jsonl", tmp_path / "verification.json")
    found = json.loads((tmp_path / "verification.json").read_text())
    for level in ("1", "2"):
        rounds = found["step_seconds"][level]
        assert rounds and all(len(row) == 5 and min(row) > 0 for row in rounds)


def asked(model, verifier, log, rows, tokens, method):
    """Answers of a server that drafts `tokens` tokens a step, one prompt at a time."""
    prompts = Prompts(rows, verifier, None)
    with running_server(str(model), SERVE, log) as server:
        expect(server.report, method, tokens, str(verifier))
        chat = Chat(server.url, server.model_name, REPLY_TOKENS, seed=0)
        answers = prompts.ask(chat, rows, 1, "test")
    assert all(answer.error is None and len(answer.token_ids) > 1 for answer in answers)
    return answers


def test_a_verifier_in_eight_bits_serves_a_draft_that_was_made_for_the_original(verifier, tmp_path: Path):
    quantise_verifier(verifier, "int8", tmp_path / "toy_int8")
    draft = draft_of(verifier, "eagle3", speculative_tokens=2)
    redirect_draft(draft, tmp_path / "toy_int8", tmp_path / "draft")
    log = tmp_path / "server.log"
    answers = asked(tmp_path / "draft", tmp_path / "toy_int8", log, SHORT, 2, "eagle3")
    assert all(answer.spec["drafted_per_step"] for answer in answers)
    assert "Int8ScaledMMLinearKernel" in log.read_text(), "the linear layers run in 8 bits"


def test_past_the_positions_of_its_config_a_block_draft_drafts_nothing(verifier, tmp_path: Path):
    """C41: the exporter writes the verifier's positions; this is what a smaller number costs, without an error."""
    document = greedy_document(verifier, Prompts(SHORT, verifier, None).token_ids["p0"])
    learned = learn_by_heart("dflash", document, load_weights(verifier))
    small = toy.write_draft(tmp_path / "small", learned, "models/toy", "dflash")
    redirect_draft(small, verifier, small)
    config = json.loads((small / "config.json").read_text())
    config["transformer_layer_config"]["max_position_embeddings"] = POSITIONS
    (small / "config.json").write_text(json.dumps(config))
    answers = asked(small, verifier, tmp_path / "server.log", [*SHORT, *LONG], TOKENS, "dflash")
    accepted = {answer.id: sum(answer.spec["accepted_per_step"]) if answer.spec else 0 for answer in answers}
    assert any(accepted[row["id"]] for row in SHORT), "the case says nothing if no draft is accepted"
    assert accepted["long"] == 0
