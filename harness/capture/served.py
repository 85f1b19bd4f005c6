"""vLLM's own server in the engine's place: replies over HTTP, states through the files of its hidden-state connector.

Called by `engines`. Slower than the engine in this process, as `tap` says why; but it is the engine that others serve
with, and it needs nothing of vLLM's inside. Replies and states are read alike: what comes out is the same.

Shape letters: S = positions of one reply, L = captured layers, H = verifier width.
"""

import fcntl
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import torch
from safetensors.torch import load_file
from torch import Tensor

from harness.capture.engine import EngineSize, Prompt, Written, row_seed
from harness.capture.settings import CaptureSettings
from harness.capture.tap import StatesDiffer
from harness.errors import UserError
from harness.sections.data import Reply
from harness.sections.serve import Serve
from harness.serving.environment import is_cpu_build
from harness.verifiers.weights import verifier_config

TIMEOUT_S = 600.0
SPARE_POSITIONS = 2  # vLLM keeps no states of a step that reaches the last two positions of its window
FILE_LIMIT_S = 60.0
POLL_S = 0.01


class ServedEngine:
    """A server with `extract_hidden_states`, for the length of a `with` block; `write` as `engine.Engine` does.

    Args:
        model: verifier folder.
        settings: of the capture.
        size, cache_bytes: as `engine.Engine` takes them.
        layer_ids: ascending ids of the states to keep.
        folder: receives the server's log, and its files until they are read.

    Raises:
        UserError: the window leaves no room for the connector, or the server failed.
    """

    def __init__(
        self, model: Path, settings: CaptureSettings, size: EngineSize, cache_bytes: int, layer_ids: list[int],
        folder: Path,
    ) -> None:  # fmt: skip
        config, window = verifier_config(model), settings.max_model_len
        longest = config.get("max_position_embeddings", window + SPARE_POSITIONS)
        if window + SPARE_POSITIONS > longest:
            raise UserError(
                f"serve.max_model_len = {window}: a server that gives states needs {SPARE_POSITIONS} positions more, "
                f"but {model} reads {longest}. Fix: use {longest - SPARE_POSITIONS}, or capture.engine in_process"
            )
        self._model, self._settings, self._size, self._layer_ids = model, settings, size, layer_ids
        itemsize = getattr(torch, settings.dtype).itemsize
        states = size.max_num_seqs * size.longest_row * len(layer_ids) * config["hidden_size"] * itemsize
        self._cache_gb = 2 * (cache_bytes + states) / 2**30  # the connector's pages are padded to the others' size
        self._files, self._log = folder / "files", folder / "server.log"
        self._running = ExitStack()

    def __enter__(self) -> Self:
        from harness.serving import running_server

        shutil.rmtree(self._files, ignore_errors=True)
        self._files.mkdir(parents=True)
        settings = self._settings
        serve = Serve(
            dtype=settings.dtype, max_model_len=settings.max_model_len + SPARE_POSITIONS,
            max_num_seqs=self._size.max_num_seqs, tensor_parallel_size=settings.tensor_parallel_size,
            kv_cache_gb=self._cache_gb,
        )  # fmt: skip
        extra = ["--kv-transfer-config", json.dumps(self._connector())]
        server = running_server(str(self._model), serve, self._log, self._extraction(), extra)
        self._server = self._running.enter_context(server)
        self._client = self._running.enter_context(httpx.Client(timeout=TIMEOUT_S, trust_env=False))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()
        shutil.rmtree(self._files, ignore_errors=True)

    def _extraction(self) -> dict[str, Any]:
        layers = {"hf_config": {"eagle_aux_hidden_state_layer_ids": self._layer_ids}}
        return {"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": layers}

    def _connector(self) -> dict[str, Any]:
        without_cuda = {"kv_connector": "FileConnector", "kv_connector_module_path": "harness.capture.file_connector"}
        kind = without_cuda if is_cpu_build() else {"kv_connector": "ExampleHiddenStatesConnector"}
        place = {"shared_storage_path": str(self._files.absolute())}
        return kind | {"kv_role": "kv_producer", "kv_connector_extra_config": place}

    def stop_recording(self) -> None:
        """From now on give replies alone; the server writes its files still, and they are deleted."""
        self._layer_ids = []

    def write(self, prompts: Iterable[Prompt], reply: Reply, seed: int) -> Iterator[Written]:
        """Replies in the order in which they finish.

        Raises:
            StatesDiffer: the recorded states are not those of the reply.
        """
        pool = ThreadPoolExecutor(self._size.max_num_seqs)
        try:
            for done in as_completed([pool.submit(self._ask, prompt, reply, seed) for prompt in prompts]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _ask(self, prompt: Prompt, reply: Reply, seed: int) -> Written:
        room = self._settings.max_model_len - len(prompt.token_ids)
        body = {
            "model": self._server.model_name, "prompt": prompt.token_ids, "n": 1,
            "max_tokens": min(reply.max_new_tokens, room), "temperature": reply.temperature, "top_p": 1.0, "top_k": 0,
            "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
            "seed": row_seed(seed, prompt.id), "return_token_ids": True,
            "kv_transfer_params": {"include_output_tokens": True},
        }  # fmt: skip
        response = self._client.post(f"{self._server.url}/v1/completions", json=body)
        response.raise_for_status()
        answer = response.json()
        (choice,) = answer["choices"]
        token_ids = choice["token_ids"]
        rows = (prompt.token_ids + token_ids)[:-1]
        states = _take(Path(answer["kv_transfer_params"]["hidden_states_path"]), rows)
        if not self._layer_ids:
            states = torch.empty(len(rows), 0, 0, dtype=states.dtype)
        return Written(prompt, token_ids, choice["finish_reason"], states)


def _take(path: Path, token_ids: list[int]) -> Tensor:
    """States [S, L, H] of one file, which is deleted. The server holds its lock until the file is whole."""
    lock, limit = path.with_name(f"{path.name}.lock"), time.monotonic() + FILE_LIMIT_S
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        while not path.exists() and time.monotonic() < limit:
            time.sleep(POLL_S)
        found = load_file(path)
    path.unlink()
    lock.unlink()
    if found["token_ids"].tolist() != token_ids:
        raise StatesDiffer(f"{path.name}: has the states of other tokens than the reply's {len(token_ids)}")
    return found["hidden_states"]
