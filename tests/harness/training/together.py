"""What `test_distributed` runs in one process and, by `torchrun`, in two: a few steps of every kind of training.

In two: `torchrun --nproc-per-node 2 -m tests.harness.training.together PLACE OUT HALF`, which also goes on from HALF.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

import algorithms
from harness.files import write_json
from harness.training import newton_schulz, state
from harness.training.__main__ import _prepare
from harness.training.distributed import World, gathered, joined
from harness.training.loop import Run, resume, train
from harness.training.settings import TrainSettings

TRAINING = {
    "seed": 3, "epochs": 3, "tokens_per_step": 64, "learning_rate": 2e-3, "validation_share": 0.2,
    "checkpoint_minutes": 1e-6, "compute_dtype": "float32", "weight_decay": 0.01,
}  # fmt: skip
KINDS = [
    ("eagle3", "adamw", {"draft_vocab_size": 64}),
    ("eagle3", "muon", {"draft_vocab_size": 64, "train_head": True}),
    ("peagle", "adamw", {"draft_vocab_size": 64, "mask_token_id": 300}),
    ("dflash", "adamw", {"draft_vocab_size": 64, "mask_token_id": 300, "block_size": 4, "max_anchors": 20}),
    ("dflash", "muon", {"draft_vocab_size": 64, "mask_token_id": 300, "block_size": 4}),
    ("dflash2", "muon", {"mask_token_id": 300, "block_size": 4}),
    ("dspark", "muon", {"draft_vocab_size": 64, "mask_token_id": 300, "block_size": 3}),
]


def name_of(kind) -> str:
    return f"{kind[0]}_{kind[1]}"


def prepared(place: Path, state: Path, kind, world: World, **training) -> Run:
    """A training of `kind` on the verifier and the capture in `place`, up to its first step."""
    algorithm, optimizer, settings = kind
    told = {"training": TRAINING | {"optimizer": optimizer} | training, "algorithm": {}, "scale": "smoke"}
    knobs = algorithms.config_class(algorithm).model_validate({"speculative_tokens": 3} | settings)
    arguments = Namespace(algorithm=algorithm, verifier=place / "verifier", capture=place / "capture", state=state)
    return _prepare(arguments, TrainSettings.model_validate(told), knobs, world)


@contextmanager
def precise() -> Iterator[None]:
    """Muon rounds to bfloat16 and gives every direction of an update the same length: rounding becomes a direction."""
    rounded, newton_schulz.ROUNDED = newton_schulz.ROUNDED, torch.float32
    yield
    newton_schulz.ROUNDED = rounded


class Stopped(Exception):
    """Half of the steps are done."""


def half_trained(place: Path, out: Path, kind, world: World) -> None:
    """Leave in `out` the state after half of the steps, as a killed training does."""
    run = prepared(place, out / f"{name_of(kind)}.state", kind, world)
    save = state.save

    def stop(*what) -> None:
        save(*what)
        if run.steps == len(run.packs) // 2:
            raise Stopped

    state.save = stop
    try:
        train(run)
    except Stopped:
        state.save = save


def trained(place: Path, out: Path, kind, world: World) -> None:
    """Train, or go on from a state, and leave metrics, weights before and after in `out`."""
    run = prepared(place, out / f"{name_of(kind)}.state", kind, world)
    with gathered(run.draft):
        before = {f"before.{n}": t.detach().clone() for n, t in run.draft.named_parameters() if t.requires_grad}
    resume(run)
    with precise():
        train(run)
    with gathered(run.draft):
        after = {n: t.detach().clone() for n, t in run.draft.named_parameters() if t.requires_grad}
    if world.leads:
        save_file(before | after, out / f"{name_of(kind)}.safetensors")
        write_json(out / f"{name_of(kind)}.json", run.metrics)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined() as here:
        place, out, half = (Path(word) for word in sys.argv[1:])
        for each in KINDS:
            trained(place, out, each, here)
        half_trained(place, out / "half", KINDS[0], here)
        trained(place, half, KINDS[0], here)
