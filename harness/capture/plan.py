"""Which rows are captured, in which shard, and which shards an earlier run already finished.

Called by `run.py`. A row that can teach nothing is dropped with a reason, never in silence. A finished shard is kept
only if it was made from the same prompts, verifier and settings.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.capture.engine import Prompt
from harness.capture.settings import CaptureSettings
from harness.capture.store import MANIFEST, read_facts, shard_name
from harness.data.chat import PromptRejected, prompt_token_ids
from harness.data.images import image_urls
from harness.errors import UserError
from harness.files import json_sha256, read_jsonl
from harness.progress import log

# These change how fast, how safely or under which title replies are made, not what a shard holds.
NOT_IN_KEY: dict[str, Any] = {
    "capture": {"max_num_seqs", "preflight_rows", "jobs"},
    "dropped_share_max": True,
    "scale": True,
    "tensor_parallel_size": True,
}


@dataclass(frozen=True)
class Row:
    """A prompt to be answered, or one that is dropped before (`dropped` says why)."""

    prompt: Prompt
    dropped: str | None


def read_rows(path: Path, tokenizer: Any, settings: CaptureSettings) -> list[Row]:
    """The rows of a prompts file with their token ids.

    Raises:
        UserError: the file is missing, empty, names an id twice, or has images where only tokens can be sent.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file. Fix: make it with `python -m harness.data`")
    rows = [_row(row, tokenizer, settings) for row in read_jsonl(path)]
    if not rows:
        raise UserError(f"{path}: holds no prompts. Fix: ask for rows under data.train")
    ids = [row.prompt.id for row in rows]
    if len(set(ids)) < len(ids):
        twice = next(each for each in ids if ids.count(each) > 1)
        raise UserError(f"{path}: id {twice!r} stands in it twice. Fix: make it again with `python -m harness.data`")
    kind = settings.capture
    if (kind.live or kind.engine != "in_process") and any(row.prompt.images for row in rows):
        raise UserError(
            f"capture: mode = {kind.mode}, engine = {kind.engine}: {path} holds prompts with images, which only the "
            "engine of this process is shown. Fix: use mode offline and engine in_process"
        )
    return rows


def _row(row: dict[str, Any], tokenizer: Any, settings: CaptureSettings) -> Row:
    try:
        token_ids = prompt_token_ids(tokenizer, row["messages"], settings.system_prompt)
    except PromptRejected as rejected:
        return Row(Prompt(row["id"], []), str(rejected))
    prompt = Prompt(row["id"], token_ids, tuple(image_urls(row["messages"])))
    room = settings.max_model_len - len(prompt.token_ids)
    wanted = min(settings.min_supervised_tokens, settings.reply.max_new_tokens)
    return Row(prompt, None if room >= wanted else f"prompt too long for max_model_len {settings.max_model_len}")


def in_shards(rows: list[Row], shard_rows: int) -> list[list[Row]]:
    """The rows in their order, cut into shards."""
    return [rows[start : start + shard_rows] for start in range(0, len(rows), shard_rows)]


def make_key(settings: CaptureSettings, rows: list[Row], verifier_sha256: str) -> dict[str, Any]:
    """What a shard's content follows from."""
    prompts = json_sha256([[row.prompt.id, row.prompt.token_ids, row.dropped, *row.prompt.images] for row in rows])
    return {"verifier": verifier_sha256, "prompts": prompts, "settings": settings.model_dump(exclude=NOT_IN_KEY)}


def finished_shards(folder: Path, key: dict[str, Any], count: int) -> dict[int, dict[str, Any]]:
    """Header facts of the shards that an earlier run finished; shards made from something else are deleted.

    The manifest is taken away: it is written again when all shards are there.
    """
    found = {path: read_facts(path) for path in sorted(folder.glob("shard_*.safetensors"))}
    (folder / MANIFEST).unlink(missing_ok=True)
    for leftover in folder.glob(".*.partial"):
        leftover.unlink()
    done = {facts["index"]: facts for facts in found.values() if facts.get("key") == key and facts["index"] < count}
    stale = [path for path in found if path.name not in {shard_name(index) for index in done}]
    if stale:
        fields = sorted({field for path in stale for field in differences(found[path].get("key"), key)})
        log(
            f"{folder}: {len(stale)} shards of an earlier capture are made again: other {', '.join(fields) or 'number'}"
        )
    for path in stale:
        path.unlink()
    return done


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """Dotted names of the fields in which two keys of `make_key` differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        return [field for key in keys for field in differences(old.get(key), new.get(key), f"{name}.{key}".lstrip("."))]
    return [] if old == new else [name or "a header"]
