"""`lint --deep`: vLLM serves draft and verifier in float32, and the reference loop drafts on the same replies.

One request at a time in float32 leaves no room for rounding: both sides must accept the same drafts in every step. That
needs memory for verifier and draft in float32, once in the server and then once here.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

import algorithms
from algorithms.exporting import speculative_tokens
from harness.checkpoint.edit import link_weights, with_verifier
from harness.checkpoint.examine import locate
from harness.checkpoint.findings import Finding
from harness.errors import UserError
from harness.evaluation.client import Answer, Chat
from harness.evaluation.diagnosis import shape_of_gap
from harness.evaluation.loop import predict
from harness.evaluation.walk import Steps, inside_reply
from harness.files import write_json
from harness.sections.serve import Serve
from harness.serving import ServerFailed, expect, running_server
from harness.verifiers.weights import verifier_config

RULE, SYMPTOM = "served-drafts", "the server drafts otherwise than the draft was trained to"
PROMPTS = (
    "Count from one to twenty in words.",
    "List the days of the week, one a line, three times.",
    "Tom has 12 apples and buys 7 more. How many apples does he have now? Explain each step.",
)
REPLY_TOKENS = 48
MAX_MODEL_LEN = 512
SEED = 0


def _finding(verdict: Any, found: str, fix: str) -> Finding:
    return Finding(RULE, verdict, SYMPTOM, found, fix)


def _verifier(config: dict[str, Any], given: Path | None) -> Path:
    named = given or Path(config["speculators_config"]["verifier"]["name_or_path"])
    if not (named / "config.json").is_file():
        raise UserError(f"{named}: no such verifier folder. Fix: pass --verifier with the folder to serve with")
    return named


def _replies(draft: Path, config: dict[str, Any], verifier: Path, scratch: Path) -> list[Answer]:
    """What the server replied to the prompts with the draft, greedily and one after another."""
    copy = scratch / "draft"
    copy.mkdir()
    link_weights(draft, copy)
    write_json(copy / "config.json", with_verifier(config, str(verifier.resolve()), []))
    length = min(MAX_MODEL_LEN, verifier_config(verifier)["max_position_embeddings"])
    settings = Serve(dtype="float32", max_model_len=length, max_num_seqs=1)
    method = algorithms.engine_method(config["speculators_model_type"])
    with running_server(str(copy), settings, scratch / "server.log") as server:
        expect(server.report, method, speculative_tokens(config), str(verifier), length)
        chat = Chat(server.url, server.model_name, REPLY_TOKENS, SEED)
        asked = [(str(n), [{"role": "user", "content": prompt}]) for n, prompt in enumerate(PROMPTS)]
        return chat.ask_all(asked, 1, "deep lint")


def _row(answer: Answer) -> dict[str, Any]:
    if answer.error is not None or answer.spec is None:
        raise UserError(f"the server's reply: {answer.error or 'no record of its steps'}. Fix: use a chat model")
    return {"prompt_token_ids": answer.prompt_token_ids, "token_ids": answer.token_ids, "spec": answer.spec}


def verdict(predicted: list[Steps], served: list[Steps]) -> Finding:
    """What the accepted drafts of every step of every reply say.

    Args:
        predicted: by the reference loop.
        served: by the server, drafts past a reply's end left out.
    """
    lengths = [1 + sum(map(sum, side)) / max(sum(map(len, side)), 1) for side in (served, predicted)]
    equal = sum(ours == theirs for ours, theirs in zip(predicted, served, strict=True))
    told = (
        f"served {lengths[0]:.2f} and predicted {lengths[1]:.2f} tokens a step; {equal} of {len(served)} replies alike"
    )
    if equal < len(served):
        return _finding("fault", told, shape_of_gap(predicted, served))
    if not any(map(sum, served)):
        return _finding("note", f"{told}, but no draft was accepted", "train longer: this compared next to nothing")
    return _finding("note", told, "none needed")


def served(name: str, config: dict[str, Any], given: Path | None) -> list[Finding]:
    """Serve the draft and compare.

    Args:
        name: folder or hub id of a draft without faults.
        given: folder of its verifier; None for the one that it names.

    Raises:
        UserError: no verifier folder, or one that cannot chat.
    """
    folder, verifier = locate(name)[0], _verifier(config, given)
    scratch = Path(tempfile.mkdtemp(prefix="deep-lint-"))
    try:
        rows = [_row(answer) for answer in _replies(folder, config, verifier, scratch)]
    except ServerFailed as error:
        last = str(error).strip().splitlines()[-1]
        return [_finding("fault", f"the server stopped: {last}", "see what it says; a machine too small says so too")]
    finally:
        shutil.rmtree(scratch)
    predicted, _ = predict(rows, folder, verifier, torch.float32)
    steps = [inside_reply(row["spec"]["accepted_per_step"], len(row["token_ids"])) for row in rows]
    return [verdict(predicted, steps)]
