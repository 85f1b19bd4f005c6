"""How fast the store gives packs against how fast trainings use them up, in one run on one machine.

    python -m benchmarks.store_read [--capture FOLDER] [--verifier FOLDER] [--reproduction NAME] [--algorithms NAME ...]

Reading is what training does for every step: documents out of the mapped shards, checked, joined to a batch. It is
timed on files that the system has forgotten (from the disk), on files that it remembers, on a copy of the store in 8
bits, and by two processes at once. Using up is a whole optimiser step: loss, gradients, optimiser.
Exit code 1 when reading from the disk is less than 5 times as fast as the fastest training.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

import algorithms
from harness.capture.parts import store_error
from harness.capture.store import MANIFEST, Store, read_facts, shard_record, write_manifest, write_shard
from harness.config import load_reproduction
from harness.errors import run_command
from harness.files import write_json
from harness.provenance import collect
from harness.training.optimizers import make_optimizers
from harness.training.packing import epoch_packs, make_batch
from harness.verifiers.weights import load_weights

RATIO_MIN = 5.0
READERS = 2


def in_eight_bits(folder: Path, out: Path) -> Store:
    """A copy of a store whose states are kept in 8 bits."""
    store = Store(folder)
    shape = [len(store.manifest["aux_layers"]) + 1, store.manifest["hidden_size"]]
    facts = {"state_shape": shape, "dtype": store.manifest["dtype"], "store_dtype": "int8"}
    records, headers, start = [], [], 0
    for index, record in enumerate(store.manifest["shards"]):
        documents = [store[row] for row in range(start, start + record["rows"])]
        path = write_shard(out, index, documents, facts)
        records.append(shard_record(path))
        headers.append(read_facts(path))
        start += record["rows"]
    told = {"shards": records, "store_dtype": "int8", "store_error": store_error(headers, records)}
    write_manifest(out, store.manifest | told)
    return Store(out)


def forget(folder: Path) -> None:
    """Have the system drop what it keeps of a store's files in memory."""
    for path in folder.rglob("shard_*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def packs_of(store: Store, tokens_per_step: int) -> list[list[int]]:
    """The packs of one epoch over all rows."""
    lengths = [len(store[row].token_ids) for row in range(len(store))]
    return epoch_packs(range(len(store)), lengths, tokens_per_step, seed=0, epoch=0)


def read_tokens_per_s(folder: Path, packs: Sequence[Sequence[int]]) -> float:
    """Tokens a second of reading all packs of a freshly opened store; opening is not timed, as it is done once."""
    store, tokens = Store(folder, check_hashes=False), 0
    started = time.perf_counter()
    for rows in packs:
        tokens += len(make_batch(store, rows).token_ids_S)
    return tokens / (time.perf_counter() - started)


def _reader(folder: Path, packs: list[list[int]], begin: Any, found: Any) -> None:
    torch.set_num_threads(1)
    begin.wait()
    found.put(read_tokens_per_s(folder, packs))


def read_together(folder: Path, packs: list[list[int]], readers: int) -> float:
    """Tokens a second of several processes together, each of which reads everything."""
    context = multiprocessing.get_context("fork")
    begin, found = context.Barrier(readers), context.Queue()
    processes = [context.Process(target=_reader, args=(folder, packs, begin, found)) for _ in range(readers)]
    for process in processes:
        process.start()
    speeds = [found.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    return sum(speeds)


def _steps(name: str, arguments: argparse.Namespace, store: Store, packs: list[list[int]]) -> Iterator[float]:
    """Tokens a second of each optimiser step of an algorithm, with the reproduction's settings."""
    reproduction = load_reproduction(arguments.reproduction)
    training, algorithm = reproduction.training, algorithms.load(name)
    verifier, knobs = load_weights(arguments.verifier), algorithm.Config.model_validate(reproduction.algorithms[name])
    kept = store.token_counts().argsort(descending=True)[: knobs.draft_vocab_size].sort().values
    draft = algorithm.build(knobs, verifier, kept, store.manifest["aux_layers"])
    objective, optimizers = algorithm.objective(knobs, verifier, draft), make_optimizers(draft, training)
    for step, rows in enumerate(packs[: arguments.steps + 1]):
        batch = make_batch(store, rows, draw=step)
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=training.compute_dtype == "bfloat16"):
            output = objective(batch)
        output.loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        yield len(batch.token_ids_S) / (time.perf_counter() - started)


def _measured(arguments: argparse.Namespace) -> dict[str, Any]:
    folder = arguments.capture
    store = Store(folder)
    packs = packs_of(store, load_reproduction(arguments.reproduction).training.tokens_per_step)
    together = read_together(folder, packs, READERS)  # first: a forked process must not inherit busy threads
    forget(folder)
    read = {"from the disk": read_tokens_per_s(folder, packs), "from memory": read_tokens_per_s(folder, packs)}
    read[f"from memory, {READERS} processes together"] = together
    with tempfile.TemporaryDirectory(dir=arguments.work) as copy:
        small = in_eight_bits(folder, Path(copy))
        forget(small.folder)
        read["8 bits, from the disk"] = read_tokens_per_s(small.folder, packs)
        read["8 bits, from memory"] = read_tokens_per_s(small.folder, packs)
        sizes = {"as captured": _bytes(store), "8 bits": _bytes(small)}
    trained = {name: median(list(_steps(name, arguments, store, packs))[1:]) for name in arguments.algorithms}
    return {"read_tokens_per_s": read, "trained_tokens_per_s": trained, "store_bytes": sizes}


def _bytes(store: Store) -> int:
    return sum(record["bytes"] for record in store.manifest["shards"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store_read", description=__doc__.split("\n")[0])
    parser.add_argument("--capture", type=Path, default=Path("results/smollm2_135m/capture"))
    parser.add_argument("--verifier", type=Path, default=Path("models/smollm2_135m"))
    parser.add_argument("--reproduction", default="smollm2_135m", help="its settings are used")
    parser.add_argument("--algorithms", nargs="+", choices=algorithms.NAMES, default=list(algorithms.NAMES))
    parser.add_argument("--steps", type=int, default=4, help="timed optimiser steps of each algorithm")
    parser.add_argument("--work", type=Path, default=None, help="where the copy in 8 bits goes for a while")
    parser.add_argument("--out", type=Path, help="also write the figures to this file as JSON")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    found = _measured(arguments)
    fastest = max(found["trained_tokens_per_s"].values())
    for name, speed in found["trained_tokens_per_s"].items():
        print(f"training {name}: {speed:,.0f} tokens/s")
    for way, speed in found["read_tokens_per_s"].items():
        print(f"reading {way}: {speed:,.0f} tokens/s, {speed / fastest:.1f} times the fastest training")
    sizes = found["store_bytes"]
    print(f"8 bits take {sizes['8 bits'] / sizes['as captured']:.3f} of the disk: {sizes}")
    if arguments.out:
        settings = {key: str(value) for key, value in vars(arguments).items()}
        capture = json.loads((arguments.capture / MANIFEST).read_text())["provenance"]
        content = found | {"capture": capture, "load_average": os.getloadavg()}
        write_json(arguments.out, content | {"provenance": collect(settings, 0, "full")})
    return int(found["read_tokens_per_s"]["from the disk"] < RATIO_MIN * fastest)


if __name__ == "__main__":
    run_command(main)
