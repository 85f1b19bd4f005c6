"""The capture step: prompts in, a whole store out; a killed run goes on where its last finished shard ended.

Called by `python -m harness.capture`. Where states come from a live engine later, replies alone are stored.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from harness.capture import eight_bits
from harness.capture.engine import AnyEngine, EngineSize, Prompt, Written, cache_bytes
from harness.capture.engines import running_engine
from harness.capture.parts import (
    PART,
    PREFLIGHT,
    Part,
    job_folder,
    part_of,
    read_parts,
    remove_other_cuts,
    totals,
)
from harness.capture.plan import Row, finished_shards, in_shards, make_key, read_rows
from harness.capture.preflight import check_states, estimate, refuse_if_short
from harness.capture.settings import CaptureSettings
from harness.capture.store import Document, fault_of, read_facts, write_manifest, write_shard
from harness.data.chat import load_tokenizer
from harness.errors import UserError
from harness.files import write_json
from harness.progress import log, meter
from harness.provenance import collect
from harness.sections.data import Reply
from harness.serving.environment import is_cpu_build
from harness.verifiers.identity import verifier_identity
from harness.verifiers.weights import load_weights, verifier_config

PREFLIGHT_NEW_TOKENS = 32


@dataclass
class Job:
    """What one call captures; made by `_job`. `number`: of a capture that is cut into jobs, which one this is."""

    settings: CaptureSettings
    verifier: Path
    folder: Path
    config: dict[str, Any]
    shards: list[list[Row]]
    identity: dict[str, Any]
    key: dict[str, Any]
    done: dict[int, dict[str, Any]] = field(default_factory=dict)
    number: int | None = None

    @property
    def layer_ids(self) -> list[int]:
        """Auxiliary layers, then the last one."""
        return [*self.settings.capture.aux_layers, self.config["num_hidden_layers"]]

    @property
    def state_shape(self) -> list[int]:
        """Of a stored position: layers and width."""
        live = self.settings.capture.live
        return [0, 0] if live else [len(self.layer_ids), self.config["hidden_size"]]

    @property
    def store_dtype(self) -> str | None:
        """In what states are stored, None for as they are; a live engine's are not stored here."""
        return None if self.settings.capture.live else self.settings.capture.store_dtype

    @property
    def stored_bytes(self) -> int:
        """Disk of the states of one position."""
        layers, width = self.state_shape
        if self.store_dtype == "int8":
            return layers * (width + eight_bits.SCALE_BYTES)
        return layers * width * getattr(torch, self.settings.dtype).itemsize

    @property
    def mine(self) -> list[int]:
        """Numbers of the shards that this call makes."""
        jobs = self.settings.capture.jobs if self.number is not None else 1
        return list(range(self.number or 0, len(self.shards), jobs))

    @property
    def pending(self) -> list[int]:
        """Those of them that are not finished."""
        return [index for index in self.mine if index not in self.done]

    def prompts(self) -> list[Prompt]:
        """What is still to be answered."""
        return [row.prompt for index in self.pending for row in self.shards[index] if row.dropped is None]

    def row_length(self, prompt: Prompt) -> int:
        """Tokens of the prompt with its longest reply."""
        return min(self.settings.max_model_len, len(prompt.token_ids) + self.settings.reply.max_new_tokens)


def capture(
    settings: CaptureSettings, verifier: Path, prompts: Path, folder: Path, number: int | None = None
) -> dict[str, Any]:
    """Make the store; returns its manifest.

    Args:
        number: capture only what this one of `capture.jobs` jobs has to, in a folder of its own, and return its part.
            None captures all, or makes one store of the parts that the jobs left.

    Raises:
        UserError: bad layers or window, no prompts, too little disk or memory, states that are not the verifier's, a
            larger share of dropped rows than allowed, or a job that is not finished.
    """
    jobs = settings.capture.jobs
    if number is not None and number >= jobs:
        raise UserError(f"--job = {number}: capture.jobs = {jobs}. Fix: use 0 to {jobs - 1}")
    job = _job(settings, verifier, prompts, folder if number is None else folder / job_folder(number), number)
    _refuse_dropped(settings, Counter(row.dropped for shard in job.shards for row in shard if row.dropped), job)
    parts = read_parts(folder, jobs, job.key) if jobs > 1 and number is None else [_capture(job)]
    if number is not None:
        write_json(job.folder / PART, parts[0])
        return parts[0]
    remove_other_cuts(folder, jobs)
    manifest = _manifest(job, parts)
    _refuse_dropped(settings, manifest["dropped"], job)
    write_manifest(folder, manifest)
    return manifest


def _capture(job: Job) -> Part:
    if job.done:
        log(f"{job.folder}: {len(job.done)} of {len(job.mine)} shards are finished already")
    if job.pending:
        with ExitStack() as running:
            for index, facts in _shards(job, _start(job, running)):
                job.done[index] = facts
    return part_of(job.folder, job.number, job.key, job.done)


def _job(settings: CaptureSettings, verifier: Path, prompts: Path, folder: Path, number: int | None = None) -> Job:
    config = verifier_config(verifier)
    layers, window = config["num_hidden_layers"], config.get("max_position_embeddings", settings.max_model_len)
    if settings.capture.aux_layers[-1] >= layers:
        raise UserError(
            f"capture.aux_layers = {settings.capture.aux_layers}: {verifier} has {layers} layers. "
            f"Fix: use ids from 0 to {layers - 1}; the last layer's states are always kept"
        )
    if settings.max_model_len > window:
        raise UserError(
            f"serve.max_model_len = {settings.max_model_len}: {verifier} reads {window} tokens at most. "
            f"Fix: use {window} or fewer"
        )
    rows = read_rows(prompts, load_tokenizer(verifier), settings)
    identity = verifier_identity(verifier)
    shards = in_shards(rows, settings.capture.shard_rows)
    key = make_key(settings, rows, identity["sha256"])
    folder.mkdir(parents=True, exist_ok=True)
    done = finished_shards(folder, key, len(shards))
    return Job(settings, verifier, folder, config, shards, identity, key, done, number)


def _start(job: Job, running: ExitStack) -> AnyEngine | None:
    """Estimate, engine, proof; None where every pending row is dropped. The engine ends with `running`."""
    settings, prompts = job.settings, job.prompts()
    if not prompts:
        return None
    number_bytes = getattr(torch, settings.dtype).itemsize
    longest_row = max(map(job.row_length, prompts))
    longest_prompt = max(len(prompt.token_ids) for prompt in prompts)
    together = min(settings.capture.max_num_seqs, len(prompts))
    size = EngineSize(longest_prompt, longest_row, together, settings.tensor_parallel_size)
    state_bytes = len(job.layer_ids) * job.config["hidden_size"] * number_bytes
    cache = cache_bytes(job.config, size, number_bytes)
    weights = sum(path.stat().st_size for path in job.verifier.glob("*.safetensors"))
    # The preflight holds the verifier a second time.
    held = 2 * weights + cache + size.max_num_seqs * longest_row * state_bytes
    wanted = estimate([job.row_length(prompt) - 1 for prompt in prompts], job.stored_bytes, held)
    log(f"capture: {wanted.line()}")
    refuse_if_short(wanted, job.folder, is_cpu_build())
    started = time.monotonic()
    engine = running.enter_context(running_engine(settings, job.verifier, size, job.layer_ids, job.folder))
    log(f"capture: engine ready after {time.monotonic() - started:.0f} s")
    _prove(job, engine, prompts[: settings.capture.preflight_rows])
    if settings.capture.live:
        engine.stop_recording()
    return engine


def _prove(job: Job, engine: AnyEngine, prompts: list[Prompt]) -> None:
    """Capture a few short replies and compare their states with transformers; figures go to preflight.json."""
    settings, started = job.settings, time.monotonic()
    short = Reply(
        max_new_tokens=min(PREFLIGHT_NEW_TOKENS, settings.reply.max_new_tokens), temperature=settings.reply.temperature
    )
    documents = [document_of(written) for written in engine.write(prompts, short, settings.seed)]
    seconds = time.monotonic() - started
    spoken = sum(int(document.loss_mask.sum()) + 1 for document in documents)
    if fault := next((f"{d.id}: {f}" for d in documents if (f := fault_of(d))), None):
        raise UserError(f"preflight: {fault}. Suspect: dtype, or the engine's cache. Fix: report this")
    images = {prompt.id: prompt.images for prompt in prompts}
    weights = load_weights(job.verifier)
    figures = check_states(documents, job.verifier, weights, job.layer_ids, settings.dtype, images)
    write_json(job.folder / PREFLIGHT, figures)
    longest_s = seconds * sum(job.row_length(p) - len(p.token_ids) for p in job.prompts()) / spoken
    log(
        f"preflight: {figures['rows']} replies reproduce the verifier: divergence "
        f"{figures['divergence_mean_nats']:.1e} nats, layers {figures['relative_error_mean']}; at most "
        f"{longest_s:.0f} s to go at this batch of {len(prompts)}"
    )


def document_of(written: Written) -> Document:
    """A reply as the store keeps it: loss on the reply's tokens, the final token apart."""
    token_ids = written.prompt.token_ids + written.token_ids[:-1]
    mask = torch.arange(len(token_ids)) >= len(written.prompt.token_ids)
    return Document(written.prompt.id, torch.tensor(token_ids), written.states, mask, written.token_ids[-1])


def _verdict(written: Written, document: Document, settings: CaptureSettings) -> str | None:
    """Why a reply is dropped, or None."""
    if written.finish_reason not in ("stop", "length"):
        return f"engine: {written.finish_reason}"
    if len(written.token_ids) < settings.min_supervised_tokens:
        return f"reply of fewer than {settings.min_supervised_tokens} tokens"
    return fault_of(document)


@dataclass
class _Open:
    """A shard that is being filled."""

    waiting: set[str]
    documents: dict[str, Document] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    cut: int = 0
    supervised: int = 0

    def take(self, written: Written, settings: CaptureSettings) -> None:
        """Keep a reply, or count why not."""
        self.waiting.remove(written.prompt.id)
        document = document_of(written)
        if reason := _verdict(written, document, settings):
            self.dropped[document.id] = reason
            return
        self.documents[document.id] = document
        self.cut += written.finish_reason == "length"
        self.supervised += len(written.token_ids)


def _shards(job: Job, engine: AnyEngine | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Fill and write the pending shards; each is given once it is durable."""
    home = {row.prompt.id: index for index in job.pending for row in job.shards[index]}
    opened = {index: _open(job.shards[index]) for index in job.pending}
    prompts, settings, since = job.prompts(), job.settings, time.monotonic()
    for index in [index for index, shard in opened.items() if not shard.waiting]:
        yield index, _close(job, index, opened.pop(index), 0.0)
    with meter("capture", len(prompts), "replies") as progress:
        spoken, started = 0, time.monotonic()
        for written in engine.write(prompts, settings.reply, settings.seed) if engine else ():
            index = home[written.prompt.id]
            opened[index].take(written, settings)
            spoken += len(written.token_ids)
            progress.advance(1, f"({spoken / (time.monotonic() - started):.0f} tokens/s)")
            if not opened[index].waiting:
                now = time.monotonic()
                yield index, _close(job, index, opened.pop(index), now - since)
                since = now


def _open(rows: list[Row]) -> _Open:
    dropped = {row.prompt.id: row.dropped for row in rows if row.dropped is not None}
    return _Open({row.prompt.id for row in rows if row.dropped is None}, dropped=dropped)


def _close(job: Job, index: int, shard: _Open, seconds: float) -> dict[str, Any]:
    """Write a full shard, rows in the order of the prompts; returns its header facts."""
    facts = {
        "index": index,
        "key": job.key,
        "state_shape": job.state_shape,
        "dtype": job.settings.dtype,
        "store_dtype": job.store_dtype,
        "dropped": shard.dropped,
        "cut_at_limit": shard.cut,
        "supervised_tokens": shard.supervised,
        "seconds": round(seconds, 3),
    }
    kept = [shard.documents[row.prompt.id] for row in job.shards[index] if row.prompt.id in shard.documents]
    return read_facts(write_shard(job.folder, index, kept, facts))


def _refuse_dropped(settings: CaptureSettings, dropped: dict[str, int], job: Job) -> None:
    rows, lost = sum(map(len, job.shards)), sum(dropped.values())
    reasons = ", ".join(f"{count} x {reason}" for reason, count in sorted(dropped.items()))
    if lost == rows:
        raise UserError(
            f"{job.folder}: all {rows} rows are dropped ({reasons}). "
            "Fix: use shorter prompts, a larger serve.max_model_len, or other data"
        )
    if lost / rows > settings.dropped_share_max:
        raise UserError(
            f"{job.folder}: {lost} of {rows} rows are dropped ({reasons}), more than data.dropped_share_max = "
            f"{settings.dropped_share_max}. Fix: mend the prompts, or allow a larger share"
        )
    if lost:
        log(f"capture: {lost} of {rows} rows are dropped: {reasons}")


def _manifest(job: Job, parts: list[Part]) -> dict[str, Any]:
    return {
        "mode": job.settings.capture.mode,
        "aux_layers": job.settings.capture.aux_layers,
        "last_layer": job.config["num_hidden_layers"],
        "hidden_size": job.config["hidden_size"],
        "vocab_size": job.config["vocab_size"],
        "dtype": job.settings.dtype,
        "store_dtype": job.store_dtype or job.settings.dtype,
        "verifier": job.identity,
        **totals(parts),
        "provenance": collect(job.settings.model_dump(), job.settings.seed, job.settings.scale),
    }
