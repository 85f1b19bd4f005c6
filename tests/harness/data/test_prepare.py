"""The prompts step as a whole: exact counts, reasons for what is missing, one line for every mistake."""

import json
import shutil
import subprocess
import sys

import pytest
from transformers import PreTrainedTokenizerFast

from harness.config import validate
from harness.data import benchmarks
from harness.data import prepare as step
from harness.data.benchmarks import Unavailable
from harness.data.prepare import Settings, prepare
from harness.errors import UserError
from harness.files import file_sha256, read_jsonl
from tests import toy

WORD = {"source": "word_problems", "rows": 30}


def settings(train=(WORD,), heldout=(WORD,), **data):
    content = {"seed": 1, "train": list(train), "heldout": list(heldout), "reply": {"max_new_tokens": 8}, **data}
    return validate(Settings, {"data": content, "scale": "smoke"}, "test")


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verifier")
    toy.write_tokenizer(folder)
    return folder


@pytest.fixture
def folder(tmp_path):
    """A data folder in the layout that the configuration names."""
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "mt_bench").mkdir()
    for split in ("train", "test"):
        lines = [json.dumps({"question": f"{split} {i}?", "answer": f"So {i}.\n#### {i}"}) for i in range(20)]
        (tmp_path / "gsm8k" / f"{split}.jsonl").write_text("\n".join(lines))
    lines = [
        json.dumps({"question_id": i, "category": "math", "turns": [f"Question {i}", f"And {i}?"]}) for i in range(4)
    ]
    (tmp_path / "mt_bench" / "question.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    def refuse(repository, *_):
        raise Unavailable(f"the hub does not give {repository} (ConnectionError)")

    monkeypatch.setattr(benchmarks, "_download", refuse)


def test_rows_files_and_counts_agree(verifier, tmp_path):
    wanted = settings([WORD, {"source": "instructions", "rows": 12}])
    sources = prepare(wanted, verifier, tmp_path)
    train = read_jsonl(tmp_path / "train.jsonl")
    assert [row["source"] for row in train] == ["word_problems"] * 30 + ["instructions"] * 12
    assert len({row["messages"][-1]["content"] for row in train}) == len({row["id"] for row in train}) == 42
    assert train[0]["id"] == "word_problems-train-00000"
    assert train[0]["answer"].split()[-2] == "####" and train[-1]["answer"] is None
    assert [(entry["split"], entry["rows"]) for entry in sources["sources"]] == [
        ("train", 30),
        ("train", 12),
        ("heldout", 30),
    ]
    assert sources == json.loads((tmp_path / "sources.json").read_text())
    assert sources["files"] == {name: file_sha256(tmp_path / name) for name in ("train.jsonl", "heldout.jsonl")}
    assert sources["provenance"]["seed"] == 1


def test_the_same_settings_write_the_same_bytes_and_another_seed_others(verifier, tmp_path):
    first, again, other = (
        prepare(settings(seed=seed), verifier, tmp_path / str(i))["files"] for i, seed in enumerate((1, 1, 2))
    )
    assert first == again
    assert first["train.jsonl"] != other["train.jsonl"] and first["heldout.jsonl"] != other["heldout.jsonl"]


def test_benchmarks_come_from_the_folder_and_keep_gold_answers_and_later_turns(verifier, folder, tmp_path):
    train, heldout = (
        [{"source": "gsm8k", "rows": 20}],
        [{"source": "gsm8k", "rows": 5}, {"source": "mt_bench", "rows": 4}],
    )
    prepare(settings(train, heldout, folder=str(folder)), verifier, tmp_path / "out")
    held = read_jsonl(tmp_path / "out" / "heldout.jsonl")
    assert all(row["messages"][0]["content"].startswith("test ") for row in held[:5])
    assert all(row["answer"].split("#### ")[1] in row["messages"][0]["content"] for row in held[:5])
    assert all(row["turns"] == [row["messages"][0]["content"].replace("Question", "And") + "?"] for row in held[5:])
    assert {row["category"] for row in held[5:]} == {"math"}


def test_long_prompts_are_a_benchmark_of_their_own(verifier, tmp_path):
    wanted = settings(heldout=[WORD, {"source": "long_prompts", "rows": 5, "examples": 6}])
    told = {
        each["source"]: each for each in prepare(wanted, verifier, tmp_path)["sources"] if each["split"] == "heldout"
    }
    rows = [row for row in read_jsonl(tmp_path / "heldout.jsonl") if row["source"] == "long_prompts"]
    assert len(rows) == told["long_prompts"]["rows"] == 5
    assert all(len(row["messages"]) == 2 * 6 + 1 and row["answer"] for row in rows)
    assert told["long_prompts"]["prompt_tokens_mean"] > 2 * told["word_problems"]["prompt_tokens_max"]


def test_an_optional_source_that_cannot_be_had_is_reported_with_the_reason(verifier, tmp_path):
    heldout = [WORD, {"source": "gsm8k", "rows": 5, "optional": True}]
    sources = prepare(settings(heldout=heldout), verifier, tmp_path)
    assert (
        sources["sources"][-1]["not_run"]
        == "data.folder is not set, and the hub does not give openai/gsm8k (ConnectionError)"
    )
    assert sources["sources"][-1]["rows"] == 0


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (settings(heldout=[{"source": "gsm8k", "rows": 5}]), "data.heldout: gsm8k: data.folder is not set"),
        (
            settings(heldout=[{"source": "gsm8k", "rows": 5}], folder="nowhere"),
            "nowhere/gsm8k/test.jsonl does not exist",
        ),
        (settings(heldout=[{"source": "gsm8k", "rows": 5, "optional": True}]), "data.heldout: the data set is empty"),
        (settings([{"source": "mt_bench", "rows": 5}]), "data.train: mt_bench has no training split"),
        (settings([{"source": "word_problems", "rows": 10**7}]), "word_problems: rows = 10000000, but only "),
    ],
)
def test_a_data_set_that_cannot_be_had_is_one_line_with_the_fix(wanted, said, verifier, tmp_path):
    with pytest.raises(UserError) as caught:
        prepare(wanted, verifier, tmp_path)
    assert said in str(caught.value) and "Fix: " in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_benchmark_smaller_than_asked_says_how_many_rows_exist(verifier, folder, tmp_path):
    twice = (folder / "gsm8k" / "train.jsonl").read_text()
    (folder / "gsm8k" / "train.jsonl").write_text(f"{twice}\n{twice}")
    with pytest.raises(UserError, match=r"rows = 21, but only 20 distinct rows exist\. Fix: ask for 20 at most"):
        prepare(settings([{"source": "gsm8k", "rows": 21}], folder=str(folder)), verifier, tmp_path / "out")


def test_a_prompt_in_both_splits_is_refused(verifier, folder, tmp_path):
    shutil.copyfile(folder / "gsm8k" / "train.jsonl", folder / "gsm8k" / "test.jsonl")
    source = [{"source": "gsm8k", "rows": 20}]
    with pytest.raises(UserError, match="20 prompts are in both splits"):
        prepare(settings(source, source, folder=str(folder)), verifier, tmp_path / "out")


def strict_tokenizer(refused):
    made = PreTrainedTokenizerFast(tokenizer_object=toy.tokenizer())
    made.chat_template = (
        f"{{% if {refused!r} in messages[0]['content'] %}}{{{{ raise_exception('not this') }}}}{{% endif %}}x"
    )
    return made


def test_a_prompt_that_the_template_refuses_is_dropped_and_counted(verifier, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(step, "load_tokenizer", lambda _: strict_tokenizer("train 7?"))
    wanted = settings([{"source": "gsm8k", "rows": 20}], folder=str(folder))
    entry = prepare(wanted, verifier, tmp_path / "out")["sources"][0]
    assert entry["rows"] == 19 and entry["rows_asked"] == 20 and entry["dropped"] == {"template: not this": 1}
    assert len(read_jsonl(tmp_path / "out" / "train.jsonl")) == 19


def test_more_refusals_than_the_limit_fail_the_step(verifier, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(step, "load_tokenizer", lambda _: strict_tokenizer("train 1"))  # 1 and 10 to 19
    with pytest.raises(UserError, match=r"11 of 20 prompts dropped; 11 dropped: template: not this\. Fix: "):
        prepare(settings([{"source": "gsm8k", "rows": 20}], folder=str(folder)), verifier, tmp_path / "out")


def test_the_command_ends_with_one_line_and_exit_code_2(tmp_path):
    command = [
        sys.executable,
        "-m",
        "harness.data",
        "--settings",
        settings().model_dump_json(),
        "--verifier",
        "nowhere",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "error: nowhere: holds no tokenizer_config.json. Fix: make the folder with `python -m harness.verifiers`"
    )
