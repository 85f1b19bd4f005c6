"""The optimisation: packs of replies in, a trained draft out, killed and resumed without a trace.

Called by `python -m harness.training`. Master weights are float32; matrix products run in the compute dtype.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from algorithms.contract import Algorithm, Batch, LossOutput
from harness.capture.store import Store
from harness.errors import UserError
from harness.files import json_sha256, read_jsonl, write_jsonl
from harness.progress import Meter, log, meter
from harness.sections.training import Training
from harness.training import state, trackers
from harness.training.batches import Batches
from harness.training.distributed import ALONE, World, clip, gathered, like
from harness.training.fingerprint import ROUNDING
from harness.training.optimizers import make_optimizers, rate_share, set_rate
from harness.training.packing import epoch_packs, make_batch, split_rows
from harness.training.validation import Walk, estimate, walk_metrics

METRICS_FILE = "metrics.jsonl"
# More than the steps of any training: no two seeds share a draw.
DRAWS_PER_SEED = 1 << 32
# Numbers of mallopt(3) in glibc.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# The kernel fills what a release gave back anew: a fifth of a second after each on one core.
STEPS_BETWEEN_HEAP_RELEASES, STEPS_BETWEEN_STORE_RELEASES = 8, 4
# Drafting at every position of a reply is dear: this many replies tell the length to a few hundredths.
VALIDATION_ROWS_MAX = 32


class Diverged(UserError):
    """The gradient is no longer a number."""


@dataclass
class Run:
    """One training: what is trained, on what, and how far it is.

    Attributes:
        folder: where the resumable state and the metrics live.
        made_from: what must be the same for a saved state to be taken up again; see `fingerprint`.
        world: the processes that train it; the draft is spread over them.
        steps: finished steps. seconds: the time they took, over all starts.
        best: the epoch that validated best so far. other_machines: see `state.Position`.
    """

    algorithm: Algorithm
    draft: nn.Module
    objective: Callable[[Batch], LossOutput]
    store: Store
    training: Training
    num_draft_tokens: int
    folder: Path
    made_from: dict[str, Any]
    world: World = ALONE
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: state.Best | None = None
    other_machines: list[str] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    sinks: list[trackers.Sink] = field(default_factory=list)

    def __post_init__(self) -> None:
        training = self.training
        self.lengths = self.store.lengths
        self.train_rows, held_out = split_rows(len(self.store), training.validation_share, training.seed)
        self.validation_rows = held_out[:: -(-len(held_out) // VALIDATION_ROWS_MAX)]
        self.packs = [
            (epoch, pack)
            for epoch in range(training.epochs)
            for pack in epoch_packs(self.train_rows, self.lengths, training.tokens_per_step, training.seed, epoch)
        ]
        self.batches = Batches(self._read, [epoch for epoch, _ in self.packs], self.world.device)
        self.optimizers = make_optimizers(self.draft, self.training)

    def _read(self, step: int) -> Batch:
        """This process's share of the pack of `step`."""
        rows = self.packs[step][1]
        return make_batch(self.store, rows, _draw(self.training, step), self.world.share(rows, self.lengths))

    def record(self, row: dict[str, Any]) -> None:
        """Keep a row for metrics.jsonl and tell it to whoever watches."""
        self.metrics.append(row)
        for sink in self.sinks:
            sink.log(trackers.figures_of(row), row["step"])


def resume(run: Run, restart_if_changed: bool = False) -> None:
    """Take up a saved state, if there is one of this very run; metrics after it are dropped.

    Raises:
        UserError: the state is of another training, and `restart_if_changed` is not set; or the processes do not find
            the same.
    """
    _take_up(run, restart_if_changed)
    recipe = json_sha256(run.made_from | {ROUNDING: None})
    if not run.world.same(run.steps, int(recipe[:12], 16)):
        raise UserError(
            f"{run.folder}: not every process finds this state, capture and recipe. "
            "Fix: use a file system that all machines see, and the same command and code on each"
        )


def _take_up(run: Run, restart_if_changed: bool) -> None:
    saved = state.load(run.folder, run.made_from, restart_if_changed)
    metrics_path = run.folder / METRICS_FILE
    if saved is None:
        metrics_path.unlink(missing_ok=True)
        return
    state.restore(saved, run.draft, run.optimizers)
    at = saved.at
    run.steps, run.seconds, run.best, run.other_machines = at.step, at.seconds, at.best, at.other_machines
    run.tokens = sum(run.lengths[row] for _, pack in run.packs[: run.steps] for row in pack)
    kept = read_jsonl(metrics_path) if metrics_path.exists() else []
    run.metrics = [row for row in kept if row["step"] <= run.steps]
    log(f"resumed after step {run.steps} of {len(run.packs)}")


def train(run: Run) -> Walk:
    """Run the remaining steps, validate after each epoch, save the state now and then; returns the last validation."""
    left = sum(run.lengths[row] for _, pack in run.packs[run.steps :] for row in pack)
    watched = run.training.log_to if run.world.leads and not _is_done(run) else []
    settings = run.training.model_dump()
    with (
        meter(f"training {run.algorithm.name}", left, "tokens") as bar,
        trackers.opened(watched, run.folder, run.steps + 1, settings) as run.sinks,
    ):
        walk = _remaining_steps(run, bar)
    return walk or _validate(run, record=False)


def _remaining_steps(run: Run, bar: Meter) -> Walk | None:
    """The validation after the last step, or None where no step was left."""
    last_saved, walk = time.monotonic(), None
    while not _is_done(run):
        tokens, row = _step(run)
        _release_now_and_then(run)
        run.record(row)
        bar.advance(tokens, f"loss {row['loss']:.3f}")
        if _epoch_ends(run):
            walk = _validate(run)
            _note_best(run, walk)
        due = time.monotonic() - last_saved > 60 * run.training.checkpoint_minutes or _is_done(run)
        if run.world.agree(due):
            _save(run)
            last_saved = time.monotonic()
    return walk


def _note_best(run: Run, walk: Walk) -> None:
    """Keep the weights of this epoch if none was better; those of the last one are the draft's own."""
    if run.best is None or not walk.acceptance_length_pooled < run.best.walk.acceptance_length_pooled:
        run.best = state.Best(run.steps, walk, {} if _is_done(run) else state.trained_weights(run.draft))


def keep(run: Run, last: Walk) -> tuple[int, Walk]:
    """Leave in the draft the weights that `training.keep` asks for; returns their step and their validation.

    Call it after `train`, with what that returned: the saved state holds both, so that the choice can be changed.
    """
    best = run.best
    if run.training.keep == "last" or best is None or best.step == run.steps:
        return run.steps, last
    log(f"kept are the weights after step {best.step}, which validated best; the state holds those after {run.steps}")
    now = run.draft.state_dict()
    run.draft.load_state_dict({name: like(tensor, now[name]) for name, tensor in best.weights.items()}, strict=False)
    return best.step, best.walk


def _is_done(run: Run) -> bool:
    """Whether every step is done."""
    return run.steps == len(run.packs)


def _epoch_ends(run: Run) -> bool:
    return _is_done(run) or run.packs[run.steps][0] != run.packs[run.steps - 1][0]


def _step(run: Run) -> tuple[int, dict[str, Any]]:
    started = time.monotonic()
    epoch, rows = run.packs[run.steps]
    rate = set_rate(run.optimizers, run.training, rate_share(run.steps, len(run.packs), run.training))
    with _precision(run):
        output = run.objective(run.batches[run.steps])
    output.loss.backward()
    norm = clip([p for p in run.draft.parameters() if p.requires_grad], run.training.clip_norm)
    if not torch.isfinite(norm):
        used = run.training.learning_rate
        raise Diverged(
            f"training.learning_rate = {used}: the gradient of step {run.steps} is not finite. Fix: lower it"
        )
    for optimizer in run.optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    tokens, seconds = sum(run.lengths[row] for row in rows), time.monotonic() - started
    run.steps, run.tokens, run.seconds = run.steps + 1, run.tokens + tokens, run.seconds + seconds
    loss, *values = run.world.sum([output.loss.item(), *output.metrics.values()])
    row = {"step": run.steps, "epoch": epoch, "tokens": run.tokens, "loss": loss, "learning_rate": rate}
    row |= {"gradient_norm": norm.item(), "tokens_per_s": tokens / seconds}
    return tokens, row | dict(zip(output.metrics, values, strict=True))


def _draw(training: Training, step: int) -> int:
    """A number of this seed and step alone, as large as a generator's seed may be."""
    return (training.seed * DRAWS_PER_SEED + step) % (1 << 63)


def _precision(run: Run) -> torch.autocast:
    reduced = run.training.compute_dtype == "bfloat16"
    return torch.autocast(run.world.device.type, dtype=torch.bfloat16, enabled=reduced)


def _validate(run: Run, record: bool = True) -> Walk:
    rows, world = run.validation_rows[run.world.rank :: run.world.size], run.world
    with _precision(run), gathered(run.draft):
        part = estimate(run.draft, run.algorithm.propose, run.store, rows, run.num_draft_tokens, world.device)
    drafts, *accepted = (int(count) for count in world.sum([part.drafts, *part.accepted_per_position]))
    if not drafts:
        raise UserError(
            f"training.validation_share = {run.training.validation_share:g}: none of the {len(run.validation_rows)} "
            "replies held out is longer than one token, so nothing can be drafted. Fix: hold out more, or let "
            "data.reply.max_new_tokens be larger"
        )
    walk = Walk(drafts, accepted)
    figures = walk_metrics(walk)
    log(f"step {run.steps}: validation acceptance length {figures['acceptance_length_pooled']}, {walk.drafts} drafts")
    if record:
        run.record({"split": "validation", "step": run.steps, "tokens": run.tokens, **figures})
    return walk


def _save(run: Run) -> None:
    # The metrics come first: a state never has fewer rows beside it than steps.
    if run.world.leads:
        write_jsonl(run.folder / METRICS_FILE, run.metrics)
    at = state.Position(run.steps, run.seconds, run.other_machines, run.best)
    state.save(run.folder, run.made_from, at, run.draft, run.optimizers, run.world.leads)


def keep_freed_memory() -> None:
    """Let glibc keep large freed blocks instead of handing each back to the kernel and faulting it in again.

    A step frees and takes the same hundreds of MB; this is worth about a tenth of its time on CPU.
    """
    for parameter, bytes_ in ((M_MMAP_THRESHOLD, 1 << 30), (M_TRIM_THRESHOLD, (1 << 31) - 1)):
        _libc().mallopt(parameter, bytes_)


def _release_now_and_then(run: Run) -> None:
    # No two packs have the same shapes: freed blocks fit ever less, and the heap grows by tens of MB a step.
    if run.steps % STEPS_BETWEEN_HEAP_RELEASES == 0:
        _libc().malloc_trim(0)
    if run.steps % STEPS_BETWEEN_STORE_RELEASES == 0:
        run.store.forget()


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
