"""GSM8K and MT-Bench from the folder that the configuration names, or from the hub at a pinned commit.

Called by `sources.py`, `local_or_hub` also by `conversations.py`. None of these sets is part of the project; where they
cannot be had, `Unavailable` says why.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

REACH_TIMEOUT_S = 5.0
HUB = {
    "gsm8k": ("openai/gsm8k", "main", "740312add88f781978c0658806c59bc2815b9866"),
    "mt_bench": ("HuggingFaceH4/mt_bench_prompts", "default", "e3a795c5e9a82ee40611c416b8a7786c73198991"),
}


class Unavailable(Exception):
    """A data set that cannot be had; the message says what was tried."""


def gsm8k(folder: str | None, split: str) -> list[dict[str, Any]]:
    """GSM8K as rows of `question` and `answer` (gold after `####`); split is train or test."""
    rows = _records("gsm8k", folder, f"gsm8k/{split}.jsonl", split)
    return [{"question": row["question"], "answer": row["answer"]} for row in rows]


def mt_bench(folder: str | None) -> list[dict[str, Any]]:
    """MT-Bench as rows of `turns` (two user turns) and `category`."""
    rows = _records("mt_bench", folder, "mt_bench/question.jsonl", "train")  # the hub calls its one split train
    return [{"turns": row["turns"] if "turns" in row else row["prompt"], "category": row["category"]} for row in rows]


def _records(name: str, folder: str | None, file: str, split: str) -> list[dict[str, Any]]:
    repository, config, revision = HUB[name]
    return list(local_or_hub(folder, file, lambda: _download(repository, config, revision, split)))


def local_or_hub(
    folder: str | None, file: str, download: Callable[[], Sequence[dict[str, Any]]]
) -> Sequence[dict[str, Any]]:
    """The JSON lines of `file` in `folder` where there is one, else what `download` gives.

    Raises:
        Unavailable: neither is to be had.
    """
    if folder is not None:
        path = Path(folder) / file
        if path.is_file():
            return _read(path)
    try:
        return download()
    except Unavailable as error:
        local = "data.folder is not set" if folder is None else f"{Path(folder) / file} does not exist"
        raise Unavailable(f"{local}, and {error}") from None


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except ValueError as error:
        raise Unavailable(f"{path} is not JSON lines ({error})") from None


def _reach_hub() -> None:
    """Ask the hub once: its own client tries for half a minute before it gives up."""
    import httpx
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return  # what is cached is found without it
    try:
        httpx.head(constants.ENDPOINT, timeout=REACH_TIMEOUT_S)
    except httpx.HTTPError as error:
        raise Unavailable(f"the hub cannot be reached ({type(error).__name__})") from None


def _download(repository: str, config: str, revision: str, split: str) -> list[dict[str, Any]]:
    return list(from_hub(repository, revision, split, name=config))


def from_hub(repository: str, revision: str, split: str, **which: Any) -> Sequence[dict[str, Any]]:
    """The rows of a data set on the hub; `which` names one of its configurations or files.

    Raises:
        Unavailable: no network, no such set, commit or split.
    """
    _reach_hub()
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    load: Callable[..., Any] = load_dataset
    try:
        return load(repository, split=split, revision=revision, **which)
    except (DatasetsError, OSError, ValueError) as error:  # ValueError: offline and not cached
        raise Unavailable(f"the hub does not give {repository} ({type(error).__name__})") from None
