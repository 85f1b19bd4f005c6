"""A capture that was cut over jobs, each with a folder and an engine of its own, and the one manifest over them all.

Called by `run`. Job i of n captures the shards whose number is i modulo n. Jobs share no file, so that any machine may
take any of them, at any time, and a killed one goes on by itself; the manifest is made of what they left.

A part is what a job leaves: `{job, key, records, facts, preflight}`, see `part_of`.
"""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.capture.plan import differences
from harness.capture.store import shard_name, shard_record
from harness.errors import UserError
from harness.jsonfile import read_object

PART = "job.json"
PREFLIGHT = "preflight.json"
Part = dict[str, Any]


def job_folder(number: int) -> str:
    """Folder of job `number` within the store's."""
    return f"job_{number}"


def part_of(folder: Path, number: int | None, key: dict[str, Any], done: dict[int, dict[str, Any]]) -> Part:
    """What the shards `done` (header facts by number) in `folder` come to; `number` is None for the only job."""
    indices, proof = sorted(done), folder / PREFLIGHT
    prefix = "" if number is None else f"{job_folder(number)}/"
    records = [shard_record(folder / shard_name(index)) for index in indices]
    return {
        "job": number,
        "key": key,
        "records": [record | {"file": prefix + record["file"]} for record in records],
        "facts": [{name: value for name, value in done[i].items() if name not in ("key", "ids")} for i in indices],
        "preflight": json.loads(proof.read_text()) if proof.exists() else None,
    }


def read_parts(folder: Path, jobs: int, key: dict[str, Any]) -> list[Part]:
    """The parts of all jobs.

    Raises:
        UserError: a job is not finished, or captured something else than `key` says.
    """
    parts = []
    for number in range(jobs):
        path = folder / job_folder(number) / PART
        again = f"Fix: run the capture with --job {number}; finished shards are kept"
        if not path.is_file():
            raise UserError(f"{path}: missing, so job {number} of {jobs} is not finished. {again}")
        part = read_object(path, again)
        if other := differences(part.get("key"), key):
            raise UserError(f"{path}: was made from other {', '.join(sorted(other))}. {again}")
        parts.append(part)
    return parts


def remove_other_cuts(folder: Path, jobs: int) -> None:
    """Delete the shards of an earlier capture that was cut into another number of jobs."""
    kept = {job_folder(number) for number in range(jobs)} if jobs > 1 else set()
    for path in folder.glob("job_*"):
        if path.name not in kept and (path / PART).exists():
            shutil.rmtree(path)
    if jobs > 1:
        for path in folder.glob("shard_*.safetensors"):
            path.unlink()


def totals(parts: Sequence[Part]) -> dict[str, Any]:
    """The manifest's entries that all jobs made together; `seconds` are those of all jobs, one after another."""
    shards = [pair for part in parts for pair in zip(part["facts"], part["records"], strict=True)]
    shards.sort(key=lambda pair: pair[0]["index"])
    facts, records = [fact for fact, _ in shards], [record for _, record in shards]
    seconds, supervised = sum(f["seconds"] for f in facts), sum(f["supervised_tokens"] for f in facts)
    return {
        "shards": records,
        "rows": sum(record["rows"] for record in records),
        "tokens": sum(record["tokens"] for record in records),
        "supervised_tokens": supervised,
        "dropped": dict(Counter(reason for f in facts for reason in f["dropped"].values())),
        "dropped_ids": {row: reason for f in facts for row, reason in f["dropped"].items()},
        "cut_at_limit": sum(f["cut_at_limit"] for f in facts),
        "store_error": store_error(facts, records),
        "preflight": _pooled_preflight([part["preflight"] for part in parts if part["preflight"]]),
        "seconds": round(seconds, 3),
        "tokens_per_s": round(supervised / seconds, 1) if seconds else None,
    }


def store_error(facts: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]]) -> list[float] | None:
    """For each layer the mean over all positions of |stored - given| / |given|; None where states are kept as given."""
    kept = [
        (record["tokens"], f["store_error"]) for f, record in zip(facts, records, strict=True) if "store_error" in f
    ]
    tokens = sum(count for count, _ in kept)
    if not tokens:
        return None
    layers = zip(*([count * error for error in errors] for count, errors in kept), strict=True)
    return [round(sum(layer) / tokens, 6) for layer in layers]


def _pooled_preflight(proofs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Figures of `preflight.StatesCheck` over all jobs: counts are added, means weighted by positions."""
    if not proofs:
        return None
    positions = sum(proof["positions"] for proof in proofs)

    def mean(values: Sequence[float]) -> float:
        return sum(p["positions"] * value for p, value in zip(proofs, values, strict=True)) / positions

    errors = {
        layer: round(mean([proof["relative_error_mean"][layer] for proof in proofs]), 6)
        for layer in proofs[0]["relative_error_mean"]
    }
    return {
        "rows": sum(proof["rows"] for proof in proofs),
        "positions": positions,
        "relative_error_mean": errors,
        "divergence_mean_nats": mean([proof["divergence_mean_nats"] for proof in proofs]),
        "argmax_differs": sum(proof["argmax_differs"] for proof in proofs),
    }
