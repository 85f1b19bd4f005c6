"""What a step costs by the tokens it verifies, without any draft: `python -m harness.evaluation verification`.

The verifier is served for a moment with a drafter that guesses nonsense in no time (`harness.serving.blind_drafts`).
`speed` takes the difference to a step without drafts, so that what such a drafter costs in every step drops out.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import provenance
from harness.errors import UserError
from harness.evaluation.client import Chat
from harness.evaluation.replies import Prompts
from harness.evaluation.results import read_held_out
from harness.evaluation.settings import SweepSettings
from harness.files import write_json
from harness.serving import blind_drafts, expect, running_server


def step_times(notes: Iterable[dict[str, Any]], draft_tokens: int, requests: int) -> list[list[float]]:
    """Seconds of steps by length, one row [0 .. K] for every round of lengths that was timed whole.

    Args:
        notes: lines of `BlindDrafts`.
        draft_tokens: K.
        requests: only rounds with this many requests in the batch throughout.
    """
    rows: list[list[float]] = []
    row: list[float] = []
    before: dict[str, Any] | None = None
    for note in notes:
        whole = before is not None and note["continues"] and note["requests"] == before["requests"] == requests
        if before is None or not whole or len(row) != before["drafted"]:
            row = []
        if before is not None and whole and len(row) == before["drafted"]:
            row.append(note["at_s"] - before["at_s"])
        if len(row) == draft_tokens + 1:
            rows.append(row)
            row = []
        before = note
    return rows


@contextmanager
def _noted_in(path: Path) -> Iterator[None]:
    """Have servers that are started in this block note their steps in `path`, an empty file at first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    os.environ[blind_drafts.NOTES] = str(path.resolve())
    try:
        yield
    finally:
        del os.environ[blind_drafts.NOTES]


def verification(settings: SweepSettings, verifier: Path, prompts: Path, out: Path) -> None:
    """Write `out`: seconds of steps by length and concurrency; log and notes stand beside it.

    Args:
        settings: `num_speculative_tokens` is the longest draft; `latency` says what to send.
        verifier: the verifier's folder.
        prompts: heldout.jsonl.
        out: file to write.

    Raises:
        UserError: the server is not what was meant, or no round of lengths was timed whole.
        RuntimeError: a reply failed.
    """
    latency, longest = settings.latency, settings.num_speculative_tokens
    _, chosen = read_held_out(prompts, latency)
    asked, notes, found = Prompts(chosen, verifier, settings.system_prompt), out.with_suffix(".steps"), {}
    told = blind_drafts.speculative_config(longest)
    with _noted_in(notes), running_server(str(verifier), settings.serve, out.with_suffix(".log"), told) as server:
        expect(server.report, told["method"], longest, str(verifier))
        chat = Chat(server.url, server.model_name, latency.max_new_tokens, settings.seed)
        asked.ask(chat, chosen[:1], 1, "verification: warm-up")
        for concurrency in latency.concurrency:
            seen = notes.read_text().count("\n")
            answers = asked.ask(chat, chosen, concurrency, f"verification, {concurrency} at once")
            if failed := [answer for answer in answers if answer.error]:
                raise RuntimeError(f"verification: {failed[0].id} failed: {failed[0].error}")
            lines = [json.loads(line) for line in notes.read_text().splitlines()[seen:]]
            found[str(concurrency)] = step_times(lines, longest, concurrency)
    if not all(found.values()):
        raise UserError(
            f"evaluate.latency.max_new_tokens = {latency.max_new_tokens}: too few steps for lengths 0 to {longest}. "
            "Fix: raise it, or send more requests (evaluate.speed.requests)"
        )
    source = provenance.collect(settings.model_dump(), settings.seed, settings.scale)
    write_json(out, {"draft_tokens": longest, "step_seconds": found, "provenance": source})
