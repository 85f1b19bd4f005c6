"""The arguments of `vllm serve`: the same for every variant but for its drafting. Called by `running_server`."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from harness.sections.serve import Serve
from harness.serving.environment import is_cpu_build
from harness.serving.processes import HOST

BATCHED_TOKENS_MIN = 2048


def served_name(model: str) -> str:
    """Name under which the server offers `model`: the last part of its path or hub id."""
    return Path(model).name


def _checkpoint_config(model: str) -> dict[str, Any]:
    path = Path(model) / "config.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def is_draft_checkpoint(model: str) -> bool:
    """Whether `model` is a folder whose config.json makes the server draft by itself."""
    return "speculators_config" in _checkpoint_config(model)


def draft_kind(model: str) -> str | None:
    """The kind of draft that a checkpoint folder holds, by its own config.json; None for other models."""
    return _checkpoint_config(model).get("speculators_model_type")


def _options(serve: Serve, port: int) -> dict[str, str]:
    options = {
        "--host": HOST,
        "--port": str(port),
        "--dtype": serve.dtype,
        "--max-model-len": str(serve.max_model_len),
        "--max-num-seqs": str(serve.max_num_seqs),
        "--max-num-batched-tokens": str(max(BATCHED_TOKENS_MIN, 2 * serve.max_model_len)),
        # A request takes no sampling defaults from the model's own files.
        "--generation-config": "vllm",
    }
    if serve.tensor_parallel_size > 1:
        options["--tensor-parallel-size"] = str(serve.tensor_parallel_size)
    if is_cpu_build():
        # A stated size spares the profiling pass and the claim on 92% of the memory.
        options["--kv-cache-memory-bytes"] = str(int(serve.kv_cache_gb * 2**30))
    return options


def _flags() -> list[str]:
    flags = [
        # Prompts stay whole: where one is split, the first model runner gives the draft a wrong token.
        "--no-enable-chunked-prefill",
        # No request is faster because of what was asked before.
        "--no-enable-prefix-caching",
        "--disable-uvicorn-access-log",
    ]
    # Compiling takes minutes on a CPU and wins nothing there.
    return [*flags, "--enforce-eager"] if is_cpu_build() else flags


def serve_arguments(
    model: str,
    serve: Serve,
    port: int,
    speculative_config: dict[str, Any] | None = None,
    extra_arguments: Sequence[str] = (),
) -> list[str]:
    """What follows `vllm serve`: `model` and the settings that must be equal for every variant that is compared."""
    options = {"--served-model-name": served_name(model)} | _options(serve, port)
    if speculative_config is not None:
        options["--speculative-config"] = json.dumps(speculative_config, sort_keys=True)
    if speculative_config is not None or is_draft_checkpoint(model):
        # Acceptance per step in every reply; vLLM refuses it where nothing drafts.
        options["--per-request-spec-decode-metrics"] = "detailed"
    return [model, *chain.from_iterable(options.items()), *_flags(), *extra_arguments]
