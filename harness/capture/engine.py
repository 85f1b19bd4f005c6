"""vLLM's engine in this process, writing replies and handing out the hidden states of each with it.

Used by `run.py` and `benchmarks/capture_one_pass.py`. The batch is kept full: a finished reply's place is taken in the
next step, across the borders of shards. Request settings are explicit, so no default of a model's own files slips in.

Shape letters: S = positions of one reply (n - 1 of n tokens), L = captured layers, H = verifier width.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from harness.data.images import decoded, narrowed
from harness.files import json_sha256
from harness.sections.data import Reply
from harness.serving.environment import is_cpu_build

TAP = "harness.capture.tap.StateTap"
CACHE_BLOCK_TOKENS = 128
CACHE_SPARE_BLOCKS = 8


@dataclass(frozen=True)
class Prompt:
    """A prompt as the verifier reads it: token ids, those of images included, and the images as data URIs."""

    id: str
    token_ids: list[int]
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class Written:
    """One reply; `states` is [S, L, H] over prompt and reply without its final token, L = 0 for a reply alone."""

    prompt: Prompt
    token_ids: list[int]
    finish_reason: str
    states: Tensor


@dataclass(frozen=True)
class EngineSize:
    """What the engine must hold.

    Attributes:
        longest_prompt: tokens of the longest prompt.
        longest_row: tokens of the longest prompt with its longest reply.
        max_num_seqs: replies at once.
        tensor_parallel_size: GPUs that hold the model together; on a CPU, processes with their share of the cores.
    """

    longest_prompt: int
    longest_row: int
    max_num_seqs: int
    tensor_parallel_size: int = 1


class AnyEngine(Protocol):
    """What capture asks of an engine."""

    def write(self, prompts: Iterable[Prompt], reply: Reply, seed: int) -> Iterator[Written]:
        """Replies in the order in which they finish, with the states of the layers that the engine was made for."""

    def stop_recording(self) -> None:
        """From now on give replies alone."""


def cache_bytes(config: dict[str, Any], size: EngineSize, dtype_bytes: int) -> int:
    """Key-value cache for `max_num_seqs` rows of the longest length (an upper bound for models with windows)."""
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    blocks = size.max_num_seqs * -(-size.longest_row // CACHE_BLOCK_TOKENS) + CACHE_SPARE_BLOCKS
    return blocks * CACHE_BLOCK_TOKENS * 2 * config["num_hidden_layers"] * heads * head_dim * dtype_bytes


class Engine:
    """A running engine; make one per process.

    Args:
        model: verifier folder.
        dtype: of weights and states.
        size: see `EngineSize`.
        window: longest row the verifier is served with; a reply is cut there.
        kv_cache_bytes: see `cache_bytes`; without effect on CUDA, where vLLM takes what is free.
        layer_ids: ascending ids of the states to keep; empty for replies alone.
    """

    def __init__(
        self, model: Path, dtype: str, size: EngineSize, window: int, kv_cache_bytes: int, layer_ids: list[int]
    ) -> None:
        # The tap reads the batch of vLLM's first model runner, and hands states over within this process.
        os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        # Its warnings speak of what is wanted here (eager, whole prompts, one process); faults come as exceptions.
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        if is_cpu_build() and size.tensor_parallel_size > 1:
            os.environ["VLLM_CPU_OMP_THREADS_BIND"] = _cores_by_worker(size.tensor_parallel_size)
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self._window, self._layer_ids, self._max_num_seqs = window, layer_ids, size.max_num_seqs
        self._dtype = getattr(torch, dtype)
        cpu: dict[str, Any] = {"kv_cache_memory_bytes": kv_cache_bytes} if is_cpu_build() else {}
        arguments = EngineArgs(
            model=str(model), dtype=dtype, max_model_len=window, max_num_seqs=size.max_num_seqs,
            # Whole prompts, each computed once and for itself: every position of every row passes the tap.
            enable_prefix_caching=False, enable_chunked_prefill=False, max_num_batched_tokens=max(window, 2048),
            enforce_eager=True, async_scheduling=False, disable_log_stats=True, generation_config="vllm",
            tensor_parallel_size=size.tensor_parallel_size,
            worker_extension_cls=TAP, **cpu,
        )  # fmt: skip
        self._engine = LLMEngine.from_engine_args(arguments)
        if layer_ids:
            self._engine.collective_rpc("tap_install", args=(layer_ids, size.longest_row))

    def stop_recording(self) -> None:
        """From now on give replies alone."""
        self._engine.collective_rpc("tap_remove")
        self._layer_ids = []

    def write(self, prompts: Iterable[Prompt], reply: Reply, seed: int) -> Iterator[Written]:
        """Replies in the order in which they finish.

        Raises:
            StatesDiffer: the recorded states are not those of the reply.
        """
        waiting, running = deque(prompts), dict[str, tuple[Prompt, str]]()
        while waiting or running:
            while waiting and len(running) < self._max_num_seqs:
                prompt = waiting.popleft()
                parameters = self._parameters(prompt, reply, seed)
                (rendered,) = self._engine.renderer.render_cmpl([self._asked(prompt)])
                running[prompt.id] = (prompt, self._engine.add_request(prompt.id, rendered, parameters))
            for output in self._engine.step():
                if output.finished:
                    prompt, request = running.pop(output.request_id)
                    yield self._written(prompt, request, output.outputs[0])

    def _asked(self, prompt: Prompt) -> dict[str, Any]:
        if not prompt.images:
            return {"prompt_token_ids": prompt.token_ids}
        token_ids = narrowed(prompt.token_ids, self._engine.model_config.hf_config.image_token_id)
        return {
            "prompt_token_ids": token_ids,
            "multi_modal_data": {"image": [decoded(url) for url in prompt.images]},
        }

    def _parameters(self, prompt: Prompt, reply: Reply, seed: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            n=1, temperature=reply.temperature, top_p=1.0, top_k=0, min_p=0.0, presence_penalty=0.0,
            frequency_penalty=0.0, repetition_penalty=1.0, min_tokens=0, ignore_eos=False, logprobs=None,
            detokenize=False, max_tokens=min(reply.max_new_tokens, self._window - len(prompt.token_ids)),
            seed=row_seed(seed, prompt.id) if reply.temperature else None, output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip

    def _written(self, prompt: Prompt, request: str, output: Any) -> Written:
        token_ids = list(output.token_ids)
        rows = (prompt.token_ids + token_ids)[:-1]
        states = torch.empty(len(rows), 0, 0, dtype=self._dtype)
        if self._layer_ids:
            # Of several workers the first one records.
            states = self._engine.collective_rpc("tap_take", args=(request, rows))[0]
        return Written(prompt, token_ids, output.finish_reason, states)


def _cores_by_worker(workers: int) -> str:
    """The cores of this process dealt out, as vLLM wants it said: `0,2|1,3`."""
    cores = sorted(os.sched_getaffinity(0))
    return "|".join(",".join(map(str, cores[worker::workers] or cores)) for worker in range(workers))


def row_seed(seed: int, prompt_id: str) -> int:
    """A seed of the row's own, so that a reply depends neither on its neighbours nor on where a run was resumed."""
    return int(json_sha256([seed, prompt_id])[:8], 16)
