"""The same captured rows twice: as a store of ours and in the layout that upstream's trainer reads.

    python -m benchmarks.upstream_data --capture DIR --verifier DIR --training JSON --steps N --out DIR

Called by `acceptance_against_upstream`. The number of rows is chosen so that `training.epochs` passes over them are N
packs of upstream's packing; `data.json` says how many rows and tokens that is.
"""

import argparse
import random
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from algorithms.vocabulary import choose, target_mask, to_offsets
from harness.capture.store import Document, Store, shard_record, write_manifest, write_shard
from harness.config import parse_settings
from harness.errors import UserError, run_command
from harness.files import write_json
from harness.sections.training import Training
from harness.training.packing import split_rows
from harness.verifiers.weights import verifier_config

UPSTREAM_SEED = 42  # its default
PACK_TOKENS = 1024
SHARD_ROWS = 256


def _packs(lengths: Sequence[int], epochs: int) -> int:
    """Optimiser steps that upstream makes of `epochs` passes over rows of these lengths."""
    from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2 as Sampler

    sampler = Sampler(batch_max_length=PACK_TOKENS, lengths=lengths, num_replicas=1, rank=0, seed=UPSTREAM_SEED)
    total = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total += len(sampler)
    return total


def _in_order(rows: int, training: Training) -> tuple[list[int], int]:
    """Positions of `rows` rows, those to train on first, and how many those are: the split our trainer makes."""
    trained, held = split_rows(rows, training.validation_share, training.seed)
    return trained + held, len(trained)


def choose_rows(lengths: Sequence[int], training: Training, steps: int) -> int:
    """The largest number of rows (the first of `lengths`) of which upstream makes `steps` packs: all of them are full.

    Raises:
        UserError: all rows are too few.
    """

    def packs(rows: int) -> int:
        order, trained = _in_order(rows, training)
        return _packs([lengths[place] for place in order[:trained]], training.epochs)

    counts = range(2, len(lengths) + 1)
    place = bisect_right(counts, steps, key=packs)
    if place == len(counts) and (most := packs(len(lengths))) < steps:
        raise UserError(f"--steps = {steps}: {training.epochs} passes over all rows are {most}. Fix: more --epochs")
    return counts[place - 1]


def _write_ours(store: Store, documents: Sequence[Document], out: Path) -> Store:
    manifest = store.manifest
    facts = {"state_shape": list(documents[0].states.shape[1:]), "dtype": manifest["dtype"]}
    parts = [documents[start : start + SHARD_ROWS] for start in range(0, len(documents), SHARD_ROWS)]
    out.mkdir(parents=True, exist_ok=True)
    shards = [shard_record(write_shard(out, index, part, facts)) for index, part in enumerate(parts)]
    counted = {
        "shards": shards,
        "rows": len(documents),
        "tokens": sum(len(document.token_ids) for document in documents),
        "supervised_tokens": sum(int(document.loss_mask.sum()) for document in documents),
    }
    write_manifest(out, manifest | counted)
    return Store(out)


def _write_upstream(documents: Sequence[Document], out: Path) -> None:
    from datasets import Dataset

    states = out / "hidden_states"
    states.mkdir(parents=True, exist_ok=True)
    rows = []
    for index, document in enumerate(documents):
        tensors = {"hidden_states": document.states.contiguous(), "token_ids": document.token_ids.contiguous()}
        save_file(tensors, states / f"hs_{index}.safetensors")
        rows.append({
            "input_ids": document.token_ids.tolist(),
            "loss_mask": document.loss_mask.long().tolist(),
            "seq_len": len(document.token_ids),
        })  # fmt: skip
    table = Dataset.from_list(rows)
    table.set_format(type="torch", columns=list(rows[0]))
    table.save_to_disk(out)


def _write_vocabulary(store: Store, size: int, ends: Sequence[int], out: Path) -> None:
    """The draft vocabulary that our trainer chooses, as upstream's two tables."""
    kept_D = choose(store.token_counts(), size, ends)
    np.save(out / f"d2t-{size}.npy", to_offsets(kept_D).numpy())
    np.save(out / f"t2d-{size}.npy", target_mask(kept_D, store.manifest["vocab_size"]).numpy())


def write_rows(
    store: Store, training: Training, steps: int, vocabularies: Sequence[int], ends: Sequence[int], out: Path
) -> None:
    """Write `ours` (a store), `upstream` (its data folder) and `data.json` to `out`.

    Args:
        store: the whole capture.
        training: its seed shuffles the rows, so that a few of them are from every source too.
        steps: see `choose_rows`.
        vocabularies: sizes of reduced draft vocabularies.
        ends: tokens that end a turn; every draft vocabulary has them.
    """
    places = list(range(len(store)))
    random.Random(training.seed).shuffle(places)
    count = choose_rows([len(store[place].token_ids) for place in places], training, steps)
    documents = [store[place] for place in places[:count]]
    ours = _write_ours(store, documents, out / "ours")
    order, trained = _in_order(count, training)
    _write_upstream([documents[place] for place in order], out / "upstream")
    for size in vocabularies:
        _write_vocabulary(ours, size, ends, out / "upstream")
    read = [documents[place] for place in order[:trained]]
    facts = {
        "rows": count,
        "training_rows": trained,
        # Half a row more than a whole number: upstream rounds the share down to rows.
        "training_share": (trained + 0.5) / count,
        "tokens": sum(len(document.token_ids) for document in read),
        "supervised_tokens": sum(int(document.loss_mask.sum()) for document in read),
    }
    write_json(out / "data.json", facts)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream_data", description=__doc__.split("\n")[0])
    parser.add_argument("--capture", type=Path, required=True)
    parser.add_argument("--verifier", type=Path, required=True)
    parser.add_argument("--training", required=True, help="JSON: the section `training` of a reproduction")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--vocabularies", type=int, nargs="*", default=[], help="sizes of reduced draft vocabularies")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    """Write what the command line asks for."""
    arguments = _arguments()
    training = parse_settings(arguments.training, Training, "--training")
    store = Store(arguments.capture, check_hashes=False)
    ends = verifier_config(arguments.verifier)["eos_token_id"]
    write_rows(
        store, training, arguments.steps, arguments.vocabularies, ends if isinstance(ends, list) else [ends],
        arguments.out,
    )  # fmt: skip


if __name__ == "__main__":
    run_command(main)
