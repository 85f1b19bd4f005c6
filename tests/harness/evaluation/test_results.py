"""Files that no step of ours left as they are: cut, empty, of another program or verifier. One line each."""

import json
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.evaluation import results
from harness.evaluation.results import read_file, read_held_out, read_rows, require_own_tokens
from harness.files import write_json, write_jsonl
from harness.sections.evaluate import Latency

SPEC = {"accepted_per_step": [1], "drafted_per_step": [3]}
ROW = {
    "id": "a", "source": "word_problems", "prompt_token_ids": [1, 2], "token_ids": [3, 4, 5], "spec": SPEC,
    "token_texts": ["x", "y", "z"], "top_logprobs": [[[3, -0.1], [4, -2]]], "likeliest": [[3, -0.1]], "more": None,
}  # fmt: skip
KINDS = (results.Asked, results.Compared, results.Sampled)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_given_as_they_stand(tmp_path: Path, kind):
    rows = [ROW, ROW | {"id": "b", "spec": None}]
    write_jsonl(tmp_path / "replies.jsonl", rows)
    assert read_rows(tmp_path / "replies.jsonl", kind) == rows


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token_ids": None}, "row 2: token_ids = None: "),
        ({"token_ids": [3, -4]}, "row 2: token_ids.1 = -4: "),
        ({"token_ids": ["3"]}, "row 2: token_ids.0 = '3': "),
        ({"prompt_token_ids": []}, "row 2: prompt_token_ids = []: "),
        ({"id": 7}, "row 2: id = 7: "),
        ({"spec": []}, "row 2: spec = []: "),
        ({"spec": SPEC | {"drafted_per_step": [3, 3]}}, "row 2: spec: accepted_per_step and drafted_per_step differ"),
        ({"top_logprobs": [[[3]]]}, "row 2: top_logprobs.0.0 = [3]: "),
    ],
)
def test_a_row_that_is_otherwise_is_named_with_its_field(tmp_path: Path, changes, said):
    write_jsonl(tmp_path / "replies.jsonl", [ROW, ROW | changes])
    with pytest.raises(UserError) as caught:
        read_rows(tmp_path / "replies.jsonl", results.Compared)
    assert str(caught.value).startswith(f"{tmp_path / 'replies.jsonl'}: {said}")
    assert str(caught.value).endswith("Fix: give a whole file that `python -m harness.evaluation measure` wrote")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps(ROW)[:40], "damaged ("),
        ("[1, 2]\n", "row 1: holds a list, not an object. Fix:"),
        ("null\n", "row 1: holds a NoneType, not an object. Fix:"),
        ("{}\n", "row 1: id: missing. Fix:"),
        ("[" * 100_000, "damaged ("),
    ],
)
def test_what_are_no_rows_is_told_in_one_line(tmp_path: Path, text, said):
    path = tmp_path / "replies.jsonl"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_rows(path, results.Asked)
    assert str(caught.value).startswith(f"{path}: {said}") and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_told_with_the_step_that_makes_it(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "replies.jsonl", tmp_path / "file" / "replies.jsonl"):
        with pytest.raises(UserError, match=r"no such file. Fix: run `python -m harness.evaluation measure`"):
            read_rows(path, results.Asked)
    with pytest.raises(UserError, match=r"no such file. Fix: run `python -m harness.data`"):
        read_rows(tmp_path / "heldout.jsonl", results.Prompt)
    with pytest.raises(UserError, match=r"no such file. Fix: run `python -m harness.evaluation sweep`"):
        read_file(tmp_path / "k5.json", results.Swept)


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        (results.Latency, {}, "concurrency: missing"),
        (results.Latency, {"concurrency": {"one": {"records": [], "invalid": False}}}, "concurrency.one"),
        (results.Latency, {"concurrency": {"1": {"records": [{"id": "a"}], "invalid": False}}}, "output_tokens: mis"),
        (results.Acceptance, {"num_speculative_tokens": "3"}, "num_speculative_tokens = '3': "),
        (results.Verification, {"step_seconds": {"1": [0.1]}}, "step_seconds.1.0 = 0.1: "),
        (results.Summary, {"validation": []}, "validation = []: not a section"),
        (results.Summary, [], "holds a list, not an object"),
    ],
)
def test_a_file_that_holds_something_else_is_named_with_its_field(tmp_path: Path, kind, content, said):
    write_json(tmp_path / "file.json", content)
    with pytest.raises(UserError) as caught:
        read_file(tmp_path / "file.json", kind)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'file.json'}: ") and said in message and "Fix: " in message
    assert "\n" not in message


def test_replies_of_a_larger_vocabulary_are_not_those_of_this_verifier(tmp_path: Path):
    write_json(tmp_path / "config.json", {"hidden_size": 8, "vocab_size": 6, "num_hidden_layers": 1})
    require_own_tokens([ROW], tmp_path)
    with pytest.raises(UserError, match=r"has 6 tokens, a was replied to with token 6. Fix: give the verifier that"):
        require_own_tokens([ROW | {"prompt_token_ids": [6]}], tmp_path)
    with pytest.raises(UserError, match="no such file"):
        require_own_tokens([ROW], tmp_path / "absent")


def test_fewer_prompts_than_are_sent_are_refused(tmp_path: Path):
    turn = [{"role": "user", "content": "Hi"}]
    rows = [{"id": f"{source}-{i}", "source": source, "messages": turn} for source in ("gsm8k", "mt_bench")
            for i in range(3)]  # fmt: skip
    write_jsonl(tmp_path / "heldout.jsonl", rows)
    latency = {"benchmark": "mt_bench", "concurrency": [1], "max_new_tokens": 8}
    every, sent = read_held_out(tmp_path / "heldout.jsonl", Latency(requests=2, **latency))
    assert (every, sent) == (rows, rows[3:5])
    with pytest.raises(UserError, match=r"holds 3 prompts of mt_bench, evaluate.latency.requests = 4 are sent. Fix:"):
        read_held_out(tmp_path / "heldout.jsonl", Latency(requests=4, **latency))
