"""The prompt sets of the published integration test: harness.data.integration through harness.data.sources."""

import json

import pytest

from harness.data import benchmarks
from harness.data.benchmarks import Unavailable
from harness.data.integration import SHOTS
from harness.data.sources import rows_of
from harness.errors import UserError
from harness.sections.data import PromptSource


@pytest.fixture
def folder(tmp_path):
    """GSM8K with 7 training and 4 test problems."""
    (tmp_path / "gsm8k").mkdir()
    for split, count in (("train", 7), ("test", 4)):
        rows = [{"question": f"{split} {i}?", "answer": f"It is {i}.\n#### {i}"} for i in range(count)]
        (tmp_path / "gsm8k" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(tmp_path)


def rows(source, count, folder=None, heldout=True):
    return rows_of(PromptSource(source=source, rows=count), heldout, folder, seed=3)


def test_five_solved_training_problems_stand_before_each_test_problem(folder):
    found = rows("gsm8k_5shot", 4, folder)
    assert {row["answer"] for row in found} == {f"It is {i}.\n#### {i}" for i in range(4)}
    for row in found:
        parts = row["messages"][0]["content"].split("\n\n")
        number = row["answer"].split("#### ")[1]
        assert parts[:SHOTS] == [f"Question: train {i}?\nAnswer: It is {i}.\n#### {i}" for i in range(5)]
        assert parts[SHOTS:] == [f"Question: test {number}?\nAnswer:"]


def test_fifty_words_are_there_to_repeat_and_no_two_prompts_are_equal():
    found = rows("repeat_word", 50)
    texts = {row["messages"][0]["content"] for row in found}
    assert len(texts) == 50
    assert all(text.startswith("Repeat the word '") and " 10 times." in text for text in texts)
    assert all(row["answer"] is None for row in found)


@pytest.mark.parametrize("source", ["repeat_word", "gsm8k_5shot"])
def test_both_sets_are_held_out_only(source, folder):
    with pytest.raises(UserError, match=rf"data.train: {source} has no training split\. Fix:"):
        rows(source, 1, folder, heldout=False)


def test_five_shot_problems_that_cannot_be_had_say_why(monkeypatch):
    def refuse(repository, *_):
        raise Unavailable(f"the hub does not give {repository}")

    monkeypatch.setattr(benchmarks, "_download", refuse)
    with pytest.raises(Unavailable, match=r"data.folder is not set, and the hub does not give openai/gsm8k"):
        rows("gsm8k_5shot", 1)
