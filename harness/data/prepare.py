"""Writes train.jsonl, heldout.jsonl and sources.json: which rows, from where, what was left out and why.

Called by `python -m harness.data`. sources.json is written last, so its presence says that the other two are whole.
"""

from collections import Counter
from pathlib import Path
from typing import Any, Literal

from harness.data.benchmarks import Unavailable
from harness.data.chat import PromptRejected, load_tokenizer, prompt_token_ids
from harness.data.sources import Row, question_of, rows_of
from harness.errors import UserError
from harness.files import file_sha256, write_json, write_jsonl
from harness.progress import log
from harness.provenance import collect
from harness.sections.base import Strict
from harness.sections.data import AnySource, Data

SPLITS = ("train", "heldout")


class Settings(Strict):
    """The part of a reproduction that shapes the prompts."""

    data: Data
    scale: Literal["full", "smoke", "mini"]


def prepare(settings: Settings, verifier: Path, folder: Path) -> dict[str, Any]:
    """Write the prompts of both splits to `folder`; returns the content of sources.json.

    Raises:
        UserError: a source cannot be had and is not optional, a split is empty, prompts are in both splits, or the chat
            template refuses too many.
    """
    tokenizer = load_tokenizer(verifier)
    splits: dict[str, list[Row]] = {split: [] for split in SPLITS}
    entries: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for split in reversed(SPLITS):  # what is held out first: chat sets leave it out
        held_out = {question_of(row) for row in splits["heldout"]}
        for source in getattr(settings.data, split):
            rows, entry = _one_source(source, split, settings.data, tokenizer, held_out)
            splits[split] += rows
            entries[split].append(entry)
            done = entry["not_run"] or f"{entry['rows']} prompts"
            log(f"{split}: {source.name}: {done}{_said(entry['dropped'])}")
        if not splits[split]:
            raise UserError(
                f"data.{split}: the data set is empty. Fix: list a source that can be had, such as word_problems"
            )
    _refuse_leaks(splits)
    return _write(splits, [entry for split in SPLITS for entry in entries[split]], settings, folder)


def _one_source(
    source: AnySource, split: str, data: Data, tokenizer: Any, held_out: set[str]
) -> tuple[list[Row], dict[str, Any]]:
    entry = {
        "source": source.name,
        "split": split,
        "rows_asked": source.rows,
        "rows": 0,
        "not_run": None,
        "dropped": {},
    }
    try:
        rows = rows_of(source, split == "heldout", data.folder, data.seed, held_out)
    except Unavailable as error:
        if not source.optional:
            raise UserError(
                f"data.{split}: {source.name}: {error}. "
                "Fix: set data.folder, connect once, or mark the source `optional: true`"
            ) from None
        return [], entry | {"not_run": str(error)}
    kept, lengths, dropped = _renderable(rows, data.system_prompt, tokenizer)
    if len(rows) - len(kept) > data.dropped_share_max * len(rows):
        raise UserError(
            f"data.{split}: {source.name}: {len(rows) - len(kept)} of {len(rows)} prompts dropped{_said(dropped)}. "
            f"Fix: change the source or the system prompt, or raise data.dropped_share_max ({data.dropped_share_max})"
        )
    sizes = {
        "prompt_tokens_max": max(lengths, default=0),
        "prompt_tokens_mean": round(sum(lengths) / max(len(lengths), 1), 1),
    }
    return kept, entry | {"rows": len(kept), "dropped": dict(dropped)} | sizes


def _renderable(
    rows: list[Row], system_prompt: str | None, tokenizer: Any
) -> tuple[list[Row], list[int], Counter[str]]:
    """Rows that the chat template accepts, their lengths in tokens, and how many were dropped for which reason."""
    kept, lengths, dropped = [], [], Counter[str]()
    for row in rows:
        try:
            lengths.append(len(prompt_token_ids(tokenizer, row["messages"], system_prompt)))
            kept.append(row)
        except PromptRejected as error:
            dropped[str(error)] += 1
    return kept, lengths, dropped


def _said(dropped: dict[str, int]) -> str:
    return "".join(f"; {count} dropped: {reason}" for reason, count in dropped.items())


def _refuse_leaks(splits: dict[str, list[Row]]) -> None:
    train, heldout = ({question_of(row): row["id"] for row in splits[split]} for split in SPLITS)
    shared = sorted(train.keys() & heldout.keys())
    if shared:
        example = f"{train[shared[0]]} and {heldout[shared[0]]}"
        raise UserError(
            f"data: {len(shared)} prompts are in both splits, such as {example}. "
            "Fix: remove them from one of the two files"
        )


def _write(
    splits: dict[str, list[Row]], entries: list[dict[str, Any]], settings: Settings, folder: Path
) -> dict[str, Any]:
    (folder / "sources.json").unlink(missing_ok=True)
    for split, rows in splits.items():
        write_jsonl(folder / f"{split}.jsonl", rows)
    content = {
        "sources": entries,
        "files": {f"{split}.jsonl": file_sha256(folder / f"{split}.jsonl") for split in SPLITS},
        "provenance": collect(settings.model_dump(), settings.data.seed, settings.scale),
    }
    write_json(folder / "sources.json", content)
    return content
