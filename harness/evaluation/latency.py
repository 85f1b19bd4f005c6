"""How long a user waits: GuideLLM's load against the running server, so many requests at once or so many a second.

Called by `measure.py`. The same prompts in the same order for every variant, so that `statistics.paired_ratio` can
compare two variants prompt by prompt. No reply is forced to a length. Definitions, per successful request; tokens come
from the server's `usage`, never from the number of stream chunks, because a verify step sends several tokens in one
chunk:

    ttft_ms       sending the request to the first token
    itl_ms        (last token - first token) / (output tokens - 1): what GuideLLM calls inter-token latency
    chunk_gap_ms  (last token - first token) / (chunks - 1)
    request_s     sending the request to the last byte
    tokens_per_s  concurrency * sum of output tokens / sum of request_s: what all streams together emit while busy;
                  under a rate of requests: sum of output tokens / time from the first request to the last byte
"""

import asyncio
import json
import math
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from multiprocessing import forkserver
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.evaluation.client import TIMEOUT_S, sampling_fields
from harness.evaluation.machine import watched
from harness.evaluation.statistics import pooled_ratio
from harness.sections.evaluate import Latency

if TYPE_CHECKING:
    from guidellm.schemas import GenerativeRequestStats

REQUEST_LIMIT_S = 120.0  # on average over a load: a server that hangs must not hold the run for ever
STOP_LIMIT_S = 60.0  # and GuideLLM's own end, after the last request

Prompt = tuple[str, Sequence[dict[str, Any]] | str]  # id, and turns or a text that has its template already


@dataclass(frozen=True)
class Arrivals:
    """How requests come: `concurrency` streams without a pause, or `rate` a second in GuideLLM's `profile`."""

    concurrency: int | None = None
    rate: float | None = None
    profile: str = "concurrent"

    def name(self) -> str:
        """For messages."""
        return f"concurrency {self.concurrency}" if self.concurrency else f"{self.rate:g} requests per second"

    def settings(self) -> dict[str, Any]:
        """GuideLLM's profile."""
        return {"kind": self.profile} | ({"streams": self.concurrency} if self.concurrency else {"rate": [self.rate]})

    def limit_s(self, requests: int) -> float:
        """How long a load of so many requests may take at most."""
        if self.concurrency:
            return REQUEST_LIMIT_S * math.ceil(requests / self.concurrency)
        return requests / (self.rate or 1.0) + REQUEST_LIMIT_S


def prepare() -> None:
    """Import GuideLLM, here and in the process its workers are forked from: 15 s, best while the server starts."""
    multiprocessing.set_forkserver_preload(["guidellm.benchmark.entrypoints", "guidellm.scheduler.worker"])
    forkserver.ensure_running()
    from guidellm.benchmark import entrypoints  # noqa: F401
    from guidellm.settings import settings

    settings.mp_context_type = "forkserver"  # its default starts each worker from nothing, which takes 15 s
    settings.max_worker_processes = 1  # one sends a few streams with ease, more would take cores from the server


def measure_latency(
    url: str, model: str, tokenizer: str, prompts: Sequence[Prompt], settings: Latency, seed: int, resamples: int
) -> dict[str, Any]:
    """Content of latency.json without its provenance.

    Args:
        url: the server's base URL.
        model: name that requests carry.
        tokenizer: folder with the tokenizer; GuideLLM asks for one, though tokens are counted by the server.
        prompts: to send once in each load. The caller has warmed the server up.
        settings: section `latency` of the reproduction.
        seed: for the sampling fields and the bootstrap.
        resamples: bootstrap draws over requests.
    """

    def load(arrivals: Arrivals) -> dict[str, Any]:
        machine: dict[str, Any] = {}
        with watched(machine):
            done, failed = _load(url, model, tokenizer, prompts, arrivals, settings.max_new_tokens, seed)
        found = summarise(done, failed, prompts, arrivals, settings.failure_share_max, seed, resamples)
        return found | {"machine": machine}

    return {
        "benchmark": settings.benchmark,
        "max_new_tokens": settings.max_new_tokens,
        "request": sampling_fields(seed),
        "concurrency": {str(streams): load(Arrivals(streams)) for streams in settings.concurrency},
        "rates": {f"{rate:g}": load(Arrivals(None, rate, settings.arrivals)) for rate in settings.rates},
        "versions": {"guidellm": metadata.version("guidellm")},
    }


def _load(
    url: str, model: str, tokenizer: str, prompts: Sequence[Prompt], arrivals: Arrivals, max_new_tokens: int, seed: int
) -> tuple[list["GenerativeRequestStats"], list["GenerativeRequestStats"]]:
    """Successful and failed requests of one GuideLLM run."""
    prepare()
    from guidellm.benchmark.entrypoints import benchmark_generative_text
    from guidellm.schemas.benchmark.entrypoints import BenchmarkScenario

    backend = {
        "kind": "openai_http", "target": url, "model": model, "max_tokens": max_new_tokens, "timeout": TIMEOUT_S,
        "http2": False, "extras": {"body": sampling_fields(seed)},
    }  # fmt: skip
    if isinstance(prompts[0][1], str):
        backend["request_format"] = "/v1/completions"
    limit_s = arrivals.limit_s(len(prompts))
    spec = {
        "backend": backend,
        "profile": arrivals.settings(),
        "seed": {"kind": "static", "value": seed},  # the same arrivals for every variant
        "constraints": [{"kind": "max_requests", "count": len(prompts)}, {"kind": "max_duration", "seconds": limit_s}],
        "tokenizer": {"kind": "huggingface_auto", "model": tokenizer},
        "data": [{"kind": "in_memory_dict_list", "data": [_row(prompt) for _, prompt in prompts]}],
        "outputs": [],
    }
    running = benchmark_generative_text(BenchmarkScenario(spec=spec), progress=False)
    try:
        report, _ = asyncio.run(asyncio.wait_for(running, limit_s + STOP_LIMIT_S))
    except TimeoutError:
        raise RuntimeError(f"latency at {arrivals.name()}: not over after {limit_s + STOP_LIMIT_S:.0f} s") from None
    requests = [benchmark.requests for benchmark in report.benchmarks]
    done = [request for group in requests for request in group.successful]
    return done, [request for group in requests for request in (*group.errored, *group.incomplete)]


def _row(prompt: Sequence[dict[str, Any]] | str) -> dict[str, Any]:
    return {"prompt": prompt} if isinstance(prompt, str) else {"messages": list(prompt)}


def summarise(
    done: Sequence["GenerativeRequestStats"], failed: Sequence["GenerativeRequestStats"], prompts: Sequence[Prompt],
    arrivals: Arrivals, failure_share_max: float, seed: int, resamples: int,
) -> dict[str, Any]:  # fmt: skip
    """Figures of one load. A prompt without a successful request is a failure, whether it was sent or not.

    Raises:
        RuntimeError: no request succeeded; the message gives the first error.
    """
    if not done:
        errors = [request.info.error for request in failed] or ["no request was sent"]
        raise RuntimeError(f"latency at {arrivals.name()}: none of {len(prompts)} requests succeeded: {errors[0]}")
    ids = {json.dumps(_row(prompt), sort_keys=True): prompt_id for prompt_id, prompt in prompts}
    records = sorted((_record(request, ids) for request in done), key=lambda record: record["id"])
    failures = len(prompts) - len(records)
    tokens, seconds = [r["output_tokens"] for r in records], [r["latency_s"] for r in records]
    return {
        "requests": len(prompts),
        "failures": failures,
        "failure_share": failures / len(prompts),
        "invalid": failures / len(prompts) > failure_share_max,
        "ttft_ms": _spread([r["ttft_ms"] for r in records]),
        "itl_ms": _spread([r["itl_ms"] for r in records]),
        "chunk_gap_ms": _spread([r["chunk_gap_ms"] for r in records]),
        "request_s": _spread(seconds),
        "tokens_per_s": _tokens_per_s(done, tokens, seconds, arrivals, seed, resamples),
        "output_tokens": sum(tokens),
        "records": records,
    }


def _tokens_per_s(
    done: Sequence["GenerativeRequestStats"], tokens: list[int], seconds: list[float], arrivals: Arrivals, seed: int,
    resamples: int,
) -> dict[str, float | None]:  # fmt: skip
    """Rate of a load; no interval under a rate of requests, which decides it as much as the server does."""
    if arrivals.concurrency is None:
        starts = [request.info.timings.request_start or 0.0 for request in done]
        ends = [request.info.timings.request_end or 0.0 for request in done]
        return {"value": sum(tokens) / max(max(ends) - min(starts), 1e-9), "low": None, "high": None}
    rate = pooled_ratio([n * arrivals.concurrency for n in tokens], seconds, resamples, seed)
    return {"value": rate.value, "low": rate.low, "high": rate.high}


def _record(request: "GenerativeRequestStats", ids: dict[str, str]) -> dict[str, Any]:
    """One request: which prompt, tokens by usage, times. Gaps are None for a reply of one token or one chunk.

    `verify_steps` is the server's own count of steps that drafted; None where nothing drafts.
    """
    body = json.loads(request.request_args or "{}")["body"]
    sent = {key: body[key] for key in ("prompt", "messages") if key in body}
    timings = request.info.timings
    tokens, chunks = request.output_tokens or 0, timings.token_iterations
    first_s, last_s = timings.first_token_iteration or 0.0, timings.last_token_iteration or 0.0
    span_ms = (last_s - first_s) * 1000
    drafting = (request.response_metrics or {}).get("speculative_decoding") or {}
    return {
        "id": ids[json.dumps(_stated(sent), sort_keys=True)],
        "output_tokens": tokens,
        "latency_s": round(request.request_latency or 0.0, 5),
        "ttft_ms": round(request.time_to_first_token_ms or 0.0, 3),
        "itl_ms": round(span_ms / (tokens - 1), 3) if tokens > 1 else None,
        "chunk_gap_ms": round(span_ms / (chunks - 1), 3) if chunks > 1 else None,
        "chunks": chunks,
        "verify_steps": drafting.get("num_spec_steps"),
    }


def _stated(sent: Any) -> Any:
    """What was sent without the empty keys that GuideLLM's data set adds: each part gets the keys of all parts."""
    if isinstance(sent, dict):
        return {key: _stated(value) for key, value in sent.items() if value is not None}
    return [_stated(each) for each in sent] if isinstance(sent, list) else sent


def _spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean, median and 95th percentile over requests; None where no request has a value."""
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "p50": None, "p95": None}
    p50, p95 = np.percentile(known, [50, 95])
    return {"mean": float(np.mean(known)), "p50": float(p50), "p95": float(p95)}
