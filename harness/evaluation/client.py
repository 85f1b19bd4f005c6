"""Asks a running server for greedy replies: every sampling field explicit, failures retried, then kept as such.

Used by the checks of `harness.evaluation`; only the latency check sends its requests through GuideLLM instead,
with the same `sampling_fields`.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from harness.errors import UserError
from harness.progress import meter

TIMEOUT_S = 300.0
ATTEMPTS = 3
RETRY_PAUSE_S = 0.5
TOP_LOGPROBS = 2
SPEC_SUMS = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")

Prompt = str | Sequence[dict[str, Any]]  # a text to continue, or the turns of a conversation


def sampling_fields(seed: int) -> dict[str, Any]:
    """Greedy decoding, spelled out: a field left out falls back to the model's own generation config."""
    return {
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": seed,
        "n": 1,
    }


@dataclass(frozen=True)
class Answer:
    """What came back for one prompt.

    Attributes:
        id: the prompt's id.
        text: the reply's text; "" where the server sent none.
        thought: whether the server kept a text apart as reasoning: a reply may have used up its length on it.
        prompt_token_ids: the prompt as the server tokenised it.
        token_ids: emitted tokens, the end token included.
        token_texts: text of each emitted token; "" for the part of a character.
        top_logprobs: the 2 likeliest candidates per emitted token as (token id, log-probability in nats).
        finish_reason: `stop`, `length`, ...
        latency_s: from sending to the last byte, of the attempt that succeeded.
        spec: accepted and drafted tokens of each verify step, or None where the server keeps none.
        spec_sums: the server's own sums over those steps: steps, drafted and accepted tokens.
        error: why every attempt failed; None for a reply.
    """

    id: str
    text: str = ""
    thought: bool = False
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    token_texts: list[str] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    finish_reason: str | None = None
    latency_s: float = 0.0
    spec: dict[str, list[int]] | None = None
    spec_sums: tuple[int, int, int] | None = None
    error: str | None = None


class Chat:
    """A server's /v1/chat/completions, asked for greedy replies of at most `max_new_tokens` tokens.

    A prompt that is a text goes to /v1/completions instead: no chat template, for tasks that are published that way.
    So do turns where `render` makes a text of them: the engine renders some families by rules of its own.
    """

    def __init__(
        self, url: str, model: str, max_new_tokens: int, seed: int, logprobs: bool = False,
        render: Callable[[Sequence[dict[str, str]]], str] | None = None,
    ) -> None:  # fmt: skip
        self.url, self.render = url, render
        self.body = {"model": model, "max_completion_tokens": max_new_tokens, "return_token_ids": True}
        self.body |= sampling_fields(seed)
        if logprobs:
            self.body |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS, "return_tokens_as_token_ids": True}

    def _request(self, prompt: Prompt, stop: Sequence[str]) -> tuple[str, dict[str, Any]]:
        """Route and body."""
        body = self.body | ({"stop": list(stop)} if stop else {})
        if not isinstance(prompt, str) and self.render is None:
            return "chat/completions", body | {"messages": list(prompt)}
        text = prompt if isinstance(prompt, str) or self.render is None else self.render(prompt)
        candidates = body.pop("top_logprobs", None)
        body |= {"prompt": text, "max_tokens": body.pop("max_completion_tokens")}
        return "completions", body | ({"logprobs": candidates} if candidates else {})

    def ask(self, client: httpx.Client, prompt_id: str, prompt: Prompt, stop: Sequence[str] = ()) -> Answer:
        """One reply. A refusal (status 4xx) is final; a failed connection or status 5xx is tried again.

        Args:
            client: the connection.
            prompt_id: goes into the answer.
            prompt: turns, or a text to continue.
            stop: texts that end the reply, and are no part of it.
        """
        route, body = self._request(prompt, stop)
        error = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(RETRY_PAUSE_S * attempt)
            started = time.monotonic()
            try:
                response = client.post(f"{self.url}/v1/{route}", json=body)
                if response.is_success:
                    return _answer(prompt_id, response.json(), time.monotonic() - started)
                error = f"status {response.status_code}: {response.text[:200]}"
                if response.is_client_error:
                    break
            except (httpx.TransportError, ValueError, LookupError, TypeError) as failure:
                error = f"{type(failure).__name__}: {failure}"
        return Answer(prompt_id, error=error)

    def ask_all(
        self, prompts: Sequence[tuple[str, Prompt]], concurrency: int, title: str, stop: Sequence[str] = ()
    ) -> list[Answer]:
        """Replies to all (id, prompt), `concurrency` at once, in the order given."""
        # Proxies of the environment are for the network; the server is on this machine.
        with (
            httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client,
            ThreadPoolExecutor(concurrency) as pool,
            meter(title, len(prompts), "replies") as bar,
        ):
            answers = []
            for answer in pool.map(lambda each: self.ask(client, each[0], each[1], stop), prompts):
                answers.append(answer)
                bar.advance(1)
            return answers


def _answer(prompt_id: str, response: dict[str, Any], latency_s: float) -> Answer:
    choice = response["choices"][0]
    message = choice.get("message") or {"content": choice.get("text")}
    tokens = _tokens(choice.get("logprobs") or {})
    detail = (response.get("metrics") or {}).get("speculative_decoding")
    return Answer(
        prompt_id,
        text=message["content"] or "",
        thought=bool(message.get("reasoning")),
        prompt_token_ids=response["prompt_token_ids"] if "message" in choice else choice["prompt_token_ids"],
        token_ids=choice["token_ids"],
        token_texts=[bytes(token.get("bytes") or []).decode(errors="replace") for token in tokens],
        top_logprobs=[[(_token_id(c["token"]), c["logprob"]) for c in token["top_logprobs"]] for token in tokens],
        finish_reason=choice["finish_reason"],
        latency_s=round(latency_s, 4),
        spec=detail and {
            "accepted_per_step": detail.get("per_step_accepted") or [],
            "drafted_per_step": detail.get("per_step_drafted") or [],
        },
        spec_sums=_sums(detail),
    )  # fmt: skip


def _tokens(logprobs: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of /v1/chat/completions; those of /v1/completions in the same form, which have no text."""
    if "content" in logprobs:
        return logprobs["content"] or []
    return [
        {"top_logprobs": [{"token": token, "logprob": value} for token, value in (candidates or {}).items()]}
        for candidates in logprobs.get("top_logprobs") or []
    ]


def _sums(detail: dict[str, Any] | None) -> tuple[int, int, int] | None:
    if not detail or any(key not in detail for key in SPEC_SUMS):
        return None
    steps, drafted, accepted = (int(detail[key]) for key in SPEC_SUMS)
    return steps, drafted, accepted


def _token_id(name: str) -> int:
    """Token id of the server's `token_id:17`."""
    return int(name.removeprefix("token_id:"))


def check_server(url: str, model: str, longest_tokens: int) -> None:
    """Refuse before the first request what would fail at each: a wrong model name, a length that does not fit.

    Args:
        url: the server's base URL.
        model: name that requests will carry.
        longest_tokens: longest prompt plus reply plus drafts, in tokens.

    Raises:
        UserError: the server does not serve `model`, or not at that length.
    """
    served = httpx.get(f"{url}/v1/models", timeout=TIMEOUT_S, trust_env=False).raise_for_status().json()["data"]
    lengths = {entry["id"]: entry.get("max_model_len") for entry in served}
    if model not in lengths:
        raise UserError(f"{url}: serves {', '.join(lengths)}, not {model!r}. Fix: start the server for that model")
    if lengths[model] is not None and lengths[model] < longest_tokens:
        raise UserError(
            f"serve: max_model_len = {lengths[model]}: longest prompt, reply and drafts take {longest_tokens} tokens. "
            f"Fix: raise serve.max_model_len to {longest_tokens} or more"
        )
