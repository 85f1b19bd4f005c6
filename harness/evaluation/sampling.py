"""Sampled replies of a running server: what `lossless` holds against the verifier's own distribution.

Called by `measure.py`. Every request has a seed of its own, because the engine draws from (seed, position): equal seeds
would draw alike in every reply. Top-p, top-k and min-p stay off, so that the distribution is the verifier's softmax.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, zip_longest
from typing import Any

import httpx

from harness.evaluation.client import TIMEOUT_S, Answer, Chat
from harness.evaluation.replies import Prompts, by_source
from harness.progress import meter
from harness.sections.evaluate import Sampling


def chosen_ids(prompts: Prompts, count: int) -> list[tuple[str, str]]:
    """(id, source) of the first `count` prompts, taken from the sources in turn: some predictable, some free."""
    groups = [[(row["id"], source) for row in rows] for source, rows in by_source(prompts.rows).items()]
    return [pair for pair in chain(*zip_longest(*groups)) if pair is not None][:count]


def _asked(prompts: Prompts, settings: Sampling, seed: int, variant: str) -> Iterator[tuple[str, str, int]]:
    """(id, source, seed of the request) of every reply. Variants draw apart, and so do all replies of one."""
    for prompt_id, source in chosen_ids(prompts, settings.prompts):
        for number in range(settings.samples):
            yield prompt_id, source, zlib.crc32(f"{seed} {variant} {prompt_id} {number}".encode())


def collect(
    url: str,
    model: str,
    prompts: Prompts,
    settings: Sampling,
    seed: int,
    variant: str,
    render: Callable[[Sequence[dict[str, str]]], str] | None = None,
) -> list[dict[str, Any]]:
    """Rows of samples.jsonl, `samples` of each prompt; replies that failed are left out.

    Args:
        url, model: the server's base URL, and the name that requests carry.
        prompts: held-out prompts, with the token ids that the server must give them.
        settings: section `sampling` of the reproduction.
        seed, variant: make the requests' seeds.
        render: see `client.Chat`.

    Raises:
        UserError: the server tokenises a prompt otherwise than the training data.
    """
    asked = list(_asked(prompts, settings, seed, variant))

    def ask(client: httpx.Client, prompt_id: str, request_seed: int) -> Answer:
        chat = Chat(url, model, settings.max_new_tokens, request_seed, logprobs=True, render=render)
        chat.body["temperature"] = settings.temperature
        return chat.ask(client, prompt_id, prompts.messages[prompt_id])

    rows = []
    with (
        httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client,
        ThreadPoolExecutor(settings.concurrency) as pool,
        meter(f"{variant}: sampling", len(asked), "replies") as bar,
    ):
        answers = pool.map(lambda one: ask(client, one[0], one[2]), asked)
        for (_, source, request_seed), answer in zip(asked, answers, strict=True):
            prompts.check([answer])
            row = _row(answer, source, request_seed) | prompts.images(answer.id)
            rows += [row] if answer.error is None else []
            bar.advance(1)
    return rows


def _row(answer: Answer, source: str, seed: int) -> dict[str, Any]:
    return {
        "id": answer.id,
        "source": source,
        "seed": seed,
        "prompt_token_ids": answer.prompt_token_ids,
        "token_ids": answer.token_ids,
        "likeliest": [top[0] for top in answer.top_logprobs],
        "spec": answer.spec,
    }


def places(row: dict[str, Any]) -> list[str] | None:
    """How each token of a sampled reply came about, known before it was drawn; None where the steps do not say.

    `plain`: by the ordinary sampler, as the first token always is. `draft 1`, `draft 2`, ...: where that draft of a
    step stood, which was accepted or replaced; the next one follows only if it was accepted. `bonus`: behind drafts
    that were all accepted.

    Whether a draft was accepted depends on the token itself, so accepted tokens alone are never distributed as the
    verifier's; the place is settled by the tokens before it, so all tokens of one kind of place are.
    """
    if row["spec"] is None:
        return ["plain"] * len(row["token_ids"])
    kinds = ["plain"]
    for accepted, drafted in zip(row["spec"]["accepted_per_step"], row["spec"]["drafted_per_step"], strict=True):
        kinds += [f"draft {j + 1}" for j in range(min(accepted + 1, drafted))] + ["bonus"] * (accepted == drafted)
    # Steps that drafted nothing emit a token and leave no record: then no place is known.
    return kinds[: len(row["token_ids"])] if len(kinds) >= len(row["token_ids"]) else None


def all_plain(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether a run drafted nothing at all."""
    return all(row["spec"] is None for row in rows)
