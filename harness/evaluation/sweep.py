"""One draft served for a moment at another draft length than its checkpoint's: acceptance and latency there.

Called by `python -m harness.evaluation sweep`; `speed` compares what it leaves with the measured variants. vLLM takes
another `num_speculative_tokens` for any draft checkpoint. A draft that fills a block with masks may accept less at a
length that it was not trained for, so that acceptance is measured there too.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import provenance
from harness.evaluation.acceptance import benchmark, identity_checks, settled_counters
from harness.evaluation.client import Answer, Chat, check_server
from harness.evaluation.latency import measure_latency, prepare
from harness.evaluation.replies import Prompts
from harness.evaluation.results import read_held_out
from harness.evaluation.settings import SweepSettings
from harness.files import write_json
from harness.serving import Server, expect, running_server


def sweep(settings: SweepSettings, variant: str, model: Path, verifier: Path, prompts: Path, out: Path) -> None:
    """Serve `model` at `settings.num_speculative_tokens` and write `out`, with the server's log beside it.

    Args:
        settings: what to send and what to expect.
        variant: name of the variant.
        model: draft checkpoint, which names its verifier.
        verifier: the verifier's folder.
        prompts: heldout.jsonl; the first prompts of the latency check are sent.
        out: file to write.

    Raises:
        UserError: the server is not what was meant.
        RuntimeError: a reply failed.
    """
    asked = Prompts(read_held_out(prompts, settings.latency)[1], verifier, settings.system_prompt)
    speculative = {"num_speculative_tokens": settings.num_speculative_tokens}
    with ExitStack() as stack:
        background = stack.enter_context(ThreadPoolExecutor(1))
        imported = background.submit(prepare)
        log = out.with_suffix(".log")
        server = stack.enter_context(running_server(str(model), settings.serve, log, speculative))
        expect(server.report, settings.method, settings.num_speculative_tokens, str(verifier))
        content = _acceptance(server, settings, variant, asked)
        imported.result()
        content["latency"] = _latency(server, settings, verifier, asked)
    source = provenance.collect(settings.model_dump(), settings.seed, settings.scale)
    write_json(out, {"variant": variant, **speculative, **content, "provenance": source})


def _acceptance(server: Server, settings: SweepSettings, variant: str, asked: Prompts) -> dict[str, Any]:
    """Figures of the replies, and the replies' own records of their steps. The first reply warms the server up."""
    draft_tokens, reply_tokens = settings.num_speculative_tokens, settings.latency.max_new_tokens
    check_server(server.url, server.model_name, asked.longest_tokens(reply_tokens) + reply_tokens + draft_tokens + 1)
    chat = Chat(server.url, server.model_name, reply_tokens, settings.seed)
    asked.ask(chat, asked.rows[:1], 1, f"{variant}, {draft_tokens} draft tokens: warm-up")
    before = settled_counters(server.metrics, server.model_name, draft_tokens)
    answers = asked.ask(
        chat, asked.rows, settings.acceptance_concurrency, f"{variant}, {draft_tokens} draft tokens: acceptance"
    )
    counted = settled_counters(server.metrics, server.model_name, draft_tokens).since(before)
    if failed := [answer for answer in answers if answer.error]:
        raise RuntimeError(f"{variant} at {draft_tokens} draft tokens: {failed[0].id} failed: {failed[0].error}")
    figures = benchmark(counted, answers, settings.bootstrap_resamples, settings.seed)
    checks = identity_checks(figures, counted, answers)
    return {"acceptance": figures, "identity_checks": checks, "replies": [_record(answer) for answer in answers]}


def _record(answer: Answer) -> dict[str, Any]:
    return {"id": answer.id, "token_ids": answer.token_ids, "spec": answer.spec}


def _latency(server: Server, settings: SweepSettings, verifier: Path, asked: Prompts) -> dict[str, Any]:
    chosen = [(row["id"], asked.messages[row["id"]]) for row in asked.rows]
    return measure_latency(
        server.url, server.model_name, str(verifier), chosen, settings.latency, settings.seed,
        settings.bootstrap_resamples,
    )  # fmt: skip
