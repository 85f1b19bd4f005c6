"""Packs: the rows of one optimiser step with their states, as an engine beside the training makes them.

`producer` makes them with `produce`, `live` reads them. Every pack is a shard of its own, made by one batch of the
engine that holds nothing else: its states depend on its replies alone, so a training that is resumed reads what it
would have read.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.capture.engine import AnyEngine, Prompt
from harness.capture.settings import CaptureSettings
from harness.capture.store import Document, Store, write_shard
from harness.files import json_sha256
from harness.sections.data import Reply

Rows = Sequence[int]
POLL_S = 0.02


def layers_of(store: Store) -> list[int]:
    """Ids of the states that the replies are to be given: auxiliary layers, then the last one."""
    return [*store.manifest["aux_layers"], store.manifest["last_layer"]]


def pack_key(store: Store, rows: Rows, settings: CaptureSettings) -> dict[str, Any]:
    """What the states of a pack follow from: the verifier, the rows of this very store of replies, and how they ran."""
    manifest = store.manifest
    return {
        "replies": json_sha256([shard["sha256"] for shard in manifest["shards"]]),
        "verifier": manifest["verifier"]["sha256"],
        "layers": layers_of(store),
        "rows": list(rows),
        "dtype": settings.dtype,
        "engine": settings.capture.engine,
        "max_num_seqs": settings.capture.max_num_seqs,
        "store_dtype": settings.capture.store_dtype,
    }


def produce(
    store: Store, engine: AnyEngine, settings: CaptureSettings, folder: Path, packs: Iterable[tuple[int, Rows]],
    ahead: int | None = None, go_on: Callable[[], bool] = lambda: True,
) -> None:  # fmt: skip
    """Write packs, in their order.

    Args:
        store: the replies.
        engine: records the layers `layers_of(store)`.
        folder: where the packs go.
        packs: number and rows of each.
        ahead: no pack is made while so many lie there; None makes all at once.
        go_on: asked while that is waited for; a no ends the work.
    """
    for number, rows in packs:
        while ahead and len(list(folder.glob("shard_*"))) >= ahead:
            if not go_on():
                return
            time.sleep(POLL_S)
        facts = {
            "key": pack_key(store, rows, settings),
            "state_shape": [len(layers_of(store)), store.manifest["hidden_size"]],
            "dtype": settings.dtype,
            "store_dtype": settings.capture.store_dtype,
        }
        write_shard(folder, number, _with_states(store, engine, rows), facts)


def _with_states(store: Store, engine: AnyEngine, rows: Rows) -> list[Document]:
    """The replies of `rows` with their states: one forward pass over prompt and reply of each, all in one batch."""
    replies = {str(row): store[row] for row in rows}
    prompts = [Prompt(name, reply.token_ids.tolist()) for name, reply in replies.items()]
    states = {written.prompt.id: written.states for written in engine.write(prompts, Reply(max_new_tokens=1), 0)}
    return [replace(reply, states=states[name]) for name, reply in replies.items()]
