"""Chat sets of others as prompts: both layouts, the turns that are kept, what is passed over."""

import json
from pathlib import Path

import pytest

from harness.config import validate
from harness.data import conversations
from harness.data.benchmarks import Unavailable
from harness.data.conversations import prompt_of
from harness.data.prepare import Settings, prepare
from harness.data.sources import rows_of
from harness.errors import UserError
from harness.files import read_jsonl
from harness.sections.data import ChatSource
from tests import toy

SHAREGPT = {"id": "0", "conversations": [
    {"from": "system", "value": "Be brief."}, {"from": "human", "value": "Hi?"}, {"from": "gpt", "value": "Hello."},
    {"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."},
]}  # fmt: skip
SYSTEM, FIRST = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi?"}
REPLY, SECOND = {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Why?"}


def _source(**changes) -> ChatSource:
    about = {"source": "chat", "name": "talk", "id": "someone/talk", "revision": "0" * 40, "rows": 3}
    return ChatSource(**(about | changes))


def _talk(*texts: str) -> dict:
    """A row of `messages`, the person first, taking turns."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with one set of five conversations in UltraChat's layout."""
    rows = [_talk(f"Question {i}?", f"Reply {i}.", f"And {i}?", "Yes.") for i in range(5)]
    (tmp_path / "talk").mkdir()
    (tmp_path / "talk" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


@pytest.mark.parametrize(
    ("turns", "kept"),
    [(1, [SYSTEM, FIRST]), (2, [SYSTEM, FIRST, REPLY, SECOND]), (9, [SYSTEM, FIRST, REPLY, SECOND])],
)
def test_a_conversation_is_kept_up_to_the_wanted_user_turn(turns: int, kept: list[dict]):
    assert prompt_of(SHAREGPT, turns) == kept


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        ({"conversations": []}, []),
        ({"other": 1}, []),
        ({"conversations": [{"from": "gpt", "value": "I go first."}, {"from": "human", "value": "No."}]}, []),
        ({"messages": [{"role": "user", "content": " "}, {"role": "assistant", "content": "?"}]}, []),
        ({"messages": [{"role": "system", "content": "Only this."}]}, []),
        ({"messages": [FIRST, {"role": "user", "content": "Twice."}]}, [FIRST]),
        ({"messages": [FIRST, {"role": "assistant", "content": None}, SECOND]}, [FIRST]),
        ({"messages": [FIRST, REPLY, {"role": "tool", "content": "{}"}]}, [FIRST]),
    ],
)
def test_what_stands_out_of_order_ends_the_conversation(row: dict, kept: list[dict]):
    assert prompt_of(row, 3) == kept


def test_rows_are_distinct_counted_and_in_an_order_of_the_seed(folder: Path):
    rows = rows_of(_source(turns=2), False, str(folder), seed=1)
    assert [row["id"] for row in rows] == ["talk-train-00000", "talk-train-00001", "talk-train-00002"]
    assert all(row["source"] == "talk" and len(row["messages"]) == 3 for row in rows)
    assert len({row["messages"][0]["content"] for row in rows}) == 3
    assert rows_of(_source(turns=2), False, str(folder), seed=1) == rows
    every = [rows_of(_source(rows=5), False, str(folder), seed=seed) for seed in range(4)]
    assert len({tuple(row["messages"][0]["content"] for row in rows) for rows in every}) > 1
    with pytest.raises(UserError, match=r"data\.train: talk: rows = 6, but only 5 distinct rows exist"):
        rows_of(_source(rows=6), False, str(folder), seed=1)


def test_what_is_held_out_is_left_out_of_training(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    verifier = tmp_path_factory.mktemp("verifier")
    toy.write_tokenizer(verifier)
    chat = _source(rows=2).model_dump()
    data = {"seed": 1, "train": [chat], "heldout": [chat], "folder": str(folder), "reply": {"max_new_tokens": 8}}
    out = tmp_path_factory.mktemp("prompts")
    told = prepare(validate(Settings, {"data": data, "scale": "full"}, "test"), verifier, out)
    assert [(each["source"], each["split"], each["rows"]) for each in told["sources"]] == [
        ("talk", "train", 2), ("talk", "heldout", 2),
    ]  # fmt: skip
    train, held = (
        {row["messages"][-1]["content"] for row in read_jsonl(out / f"{split}.jsonl")} for split in ("train", "heldout")
    )
    assert not train & held


def test_the_hub_is_asked_for_the_pinned_commit_the_split_and_the_file(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def from_hub(*where: str, **which: object) -> list[dict]:
        asked.append((where, which))
        return [_talk("Hm?")]

    monkeypatch.setattr(conversations, "from_hub", from_hub)
    rows = rows_of(_source(rows=1, split="train_sft", file="all.json"), False, None, seed=1)
    assert rows[0]["messages"] == [{"role": "user", "content": "Hm?"}]
    assert asked == [(("someone/talk", "0" * 40, "train_sft"), {"data_files": ["all.json"]})]


def test_a_set_that_cannot_be_had_says_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: str) -> list[dict]:
        raise Unavailable("the hub does not give someone/talk (ConnectionError)")

    monkeypatch.setattr(conversations, "from_hub", refuse)
    with pytest.raises(Unavailable, match=r"talk/train\.jsonl does not exist, and the hub does not give someone/talk"):
        rows_of(_source(), False, str(tmp_path), seed=1)
