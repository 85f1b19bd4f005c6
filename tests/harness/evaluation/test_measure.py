"""A whole measurement against a scripted server, and the three commands' refusals."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest

from harness.data.chat import load_tokenizer, prompt_token_ids
from harness.errors import UserError
from harness.evaluation import measure as measuring
from harness.evaluation.__main__ import main
from harness.evaluation.settings import MeasureSettings
from harness.files import read_jsonl, write_jsonl
from harness.serving import ServerReport
from tests import toy
from tests.harness.evaluation.fake_server import MODEL, Scripted, counters_text, fake_server

K = 3
SETTINGS = {
    "evaluate": {
        "bootstrap_resamples": 100,
        "acceptance": {"max_new_tokens": 16, "concurrency": 2},
        "accuracy": {"tasks": ["word_problems", "gsm8k"], "limit": 2, "max_new_tokens": 16, "concurrency": 2},
        "latency": {"benchmark": "word_problems", "concurrency": [1], "requests": 2, "max_new_tokens": 8},
        "sampling": {"prompts": 2, "samples": 2, "max_new_tokens": 8, "concurrency": 2},
    },
    "serve": {"max_model_len": 512, "max_num_seqs": 4},
    "expected": {"method": "drafter", "num_speculative_tokens": K},
    "scale": "smoke",
}
ROWS = [
    {"id": f"{source}-{i}", "source": source, "messages": [{"role": "user", "content": f"{source} {i}"}],
     "answer": "so\n#### 4" if source == "word_problems" else None}
    for source in ("word_problems", "instructions") for i in range(3)
]  # fmt: skip
STEPS = [2, 0]  # accepted in the two verify steps of every reply


class Engine:
    """Counts as the real engine does, and says so under /metrics."""

    def __init__(self, tokenizer):
        self.tokenizer, self.replies, self.fake = tokenizer, 0, None

    def reply(self, body):
        self.replies += 1
        accepted = tuple(self.replies * sum(a > j for a in STEPS) for j in range(K))
        self.fake.metrics_text = counters_text(
            drafts=self.replies * len(STEPS), draft_tokens=self.replies * len(STEPS) * K, per_position=accepted
        )
        asked = body.get("messages")
        return Scripted(
            chunks=[["#### "], ["4", " ", "!"], ["."]],
            prompt_token_ids=prompt_token_ids(self.tokenizer, asked)
            if asked
            else self.tokenizer(body["prompt"]).input_ids,
            spec={"per_step_accepted": STEPS, "per_step_drafted": [K] * len(STEPS)},
        )


def report(**changes):
    facts = {
        "method": "drafter", "num_speculative_tokens": K, "verifier": "verifier", "draft": "draft", "dtype": "bfloat16",
        "max_model_len": 512, "startup_s": 1.0, "command": ["vllm", "serve"], "settings": {},
    }  # fmt: skip
    return ServerReport(**facts | changes)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A folder with verifier and prompts, and a scripted server in place of vLLM."""
    monkeypatch.setattr("harness.evaluation.acceptance.SETTLE_S", 0.0)
    verifier = tmp_path / "verifier"
    verifier.mkdir()
    toy.write_tokenizer(verifier)
    write_jsonl(tmp_path / "heldout.jsonl", ROWS)
    engine = Engine(load_tokenizer(verifier))
    found = SimpleNamespace(verifier=verifier, prompts=tmp_path / "heldout.jsonl", out=tmp_path / "out", engine=engine,
                            report=report(verifier=str(verifier)))  # fmt: skip
    with fake_server(engine.reply) as fake:
        engine.fake = fake
        fake.metrics_text = counters_text(per_position=(0,) * K)

        @contextmanager
        def running_server(*_, **__):
            metrics = lambda: httpx.get(f"{fake.url}/metrics").text  # noqa: E731
            yield SimpleNamespace(url=fake.url, model_name=MODEL, report=found.report, metrics=metrics)

        monkeypatch.setattr(measuring, "running_server", running_server)
        yield found


def run(world, **changes):
    settings = MeasureSettings.model_validate(SETTINGS | changes)
    measuring.measure(settings, "variant", world.verifier, world.verifier, world.prompts, world.out)


def without_latency(monkeypatch):
    """Leave GuideLLM out: its own start takes longer than everything else."""
    monkeypatch.setattr(measuring.Measurement, "latency", lambda *_: None)
    monkeypatch.setattr("harness.evaluation.latency.prepare", lambda: None)


def test_replies_acceptance_and_accuracy_of_one_variant(world, monkeypatch):
    without_latency(monkeypatch)
    run(world)
    rows = read_jsonl(world.out / "replies.jsonl")
    assert [row["id"] for row in rows] == [row["id"] for row in ROWS]
    acceptance = json.loads((world.out / "acceptance.json").read_text())
    assert acceptance["num_speculative_tokens"] == K
    assert acceptance["benchmarks"].keys() == {"word_problems", "instructions"}
    for source in acceptance["benchmarks"]:
        figures = acceptance["benchmarks"][source]
        assert (figures["drafts"], figures["acceptance_length_pooled"]) == (6, 2.0)
        assert figures["acceptance_rate_per_position"] == [0.5, 0.5, 0.0]
        assert figures["emitted_tokens_per_step"] == 2.0
        assert all(acceptance["identity_checks"][source].values())
    assert acceptance["request"]["temperature"] == 0.0
    samples = read_jsonl(world.out / "samples.jsonl")
    assert [row["id"] for row in samples] == ["word_problems-0"] * 2 + ["instructions-0"] * 2
    accuracy = json.loads((world.out / "accuracy.json").read_text())["tasks"]
    assert (accuracy["word_problems"]["strict"], accuracy["word_problems"]["n"]) == (1.0, 2)
    assert "not_run" in accuracy["gsm8k"]
    for name in ("server.json", "acceptance.json", "accuracy.json"):
        assert json.loads((world.out / name).read_text())["provenance"]["scale"] == "smoke"


def test_prompts_that_the_client_renders_go_as_texts_to_the_other_route(world, monkeypatch):
    without_latency(monkeypatch)
    run(world, serve=SETTINGS["serve"] | {"chat_template": "client"})
    assert set(world.engine.fake.paths) == {"/v1/completions"}
    ids = {row["id"]: prompt_token_ids(world.engine.tokenizer, row["messages"]) for row in ROWS}
    rows = read_jsonl(world.out / "replies.jsonl")
    assert {row["id"]: row["prompt_token_ids"] for row in rows} == ids
    assert all(row["top_logprobs"][0] == [[10, -0.1], [0, -3.0]] for row in rows)
    assert all(row["spec"]["accepted_per_step"] == STEPS for row in rows)
    assert rows[0]["token_texts"] == [world.engine.tokenizer.decode(token) for token in rows[0]["token_ids"]]
    assert {row["id"] for row in read_jsonl(world.out / "samples.jsonl")} == {"word_problems-0", "instructions-0"}
    accuracy = json.loads((world.out / "accuracy.json").read_text())["tasks"]
    assert (accuracy["word_problems"]["strict"], accuracy["word_problems"]["n"]) == (1.0, 2)


def two_turns(world, monkeypatch):
    without_latency(monkeypatch)
    question = {"source": "mt_bench", "category": "writing", "answer": None, "turns": ["Shorter."],
                "messages": [{"role": "user", "content": "Write a poem."}]}  # fmt: skip
    write_jsonl(world.prompts, [*ROWS, *(question | {"id": f"mt_bench-{i}"} for i in range(2))])
    run(world)
    return read_jsonl(world.out / "replies.jsonl"), json.loads((world.out / "acceptance.json").read_text())


def test_a_measurement_asks_both_turns_and_tells_them_apart(world, monkeypatch):
    replies, acceptance = two_turns(world, monkeypatch)
    ids = [row["id"] for row in replies if row["source"] == "mt_bench"]
    assert ids == ["mt_bench-0", "mt_bench-1", "mt_bench-0#turn2", "mt_bench-1#turn2"]
    figures = acceptance["benchmarks"]["mt_bench"]
    assert figures["drafts"] == 4 * 2 and figures["prompts"] == 4
    assert {kind: found["prompts"] for kind, found in figures["categories"].items()} == {
        "turn 1": 2, "turn 2": 2, "writing": 4,
    }  # fmt: skip
    assert all(acceptance["identity_checks"]["mt_bench"].values())
    assert "turn 1" not in acceptance["benchmarks"]["word_problems"]["categories"]


def test_a_second_turn_that_cannot_fit_is_refused_before_anything_is_asked(world, monkeypatch):
    world.engine.fake.models = [{"id": "toy", "max_model_len": 90}]
    with pytest.raises(UserError, match="longest prompt, reply and drafts take"):
        two_turns(world, monkeypatch)
    assert world.engine.replies == 0


def test_a_limit_takes_the_first_prompts_of_each_source(world, monkeypatch):
    without_latency(monkeypatch)
    evaluate = SETTINGS["evaluate"] | {"acceptance": SETTINGS["evaluate"]["acceptance"] | {"limit": 2}}
    run(world, evaluate=evaluate)
    ids = [row["id"] for row in read_jsonl(world.out / "replies.jsonl")]
    assert ids == ["word_problems-0", "word_problems-1", "instructions-0", "instructions-1"]


def test_a_warm_up_without_any_reply_ends_the_run_before_the_clock_starts(world, monkeypatch):
    monkeypatch.setattr("harness.evaluation.latency.prepare", lambda: None)
    monkeypatch.setattr("harness.evaluation.client.RETRY_PAUSE_S", 0.0)
    timed = []
    monkeypatch.setattr("harness.evaluation.latency.measure_latency", lambda *_: timed.append(1))
    good = world.engine.reply

    def reply(body):
        return Scripted(status=500) if body["max_completion_tokens"] == 8 else good(body)

    world.engine.fake.reply = reply
    with pytest.raises(RuntimeError, match=r"variant: every request of the latency warm-up failed: status 500"):
        run(world)
    assert timed == []


def test_a_variant_without_drafting_has_replies_and_no_acceptance(world, monkeypatch):
    without_latency(monkeypatch)
    world.report = report(verifier=str(world.verifier), method=None, num_speculative_tokens=0)
    run(world, expected={"method": None, "num_speculative_tokens": 0})
    acceptance = json.loads((world.out / "acceptance.json").read_text())
    assert (acceptance["num_speculative_tokens"], acceptance["benchmarks"]) == (0, {})
    assert len(read_jsonl(world.out / "replies.jsonl")) == len(ROWS)


def test_a_server_that_drafts_otherwise_than_meant_is_refused_before_any_request(world, monkeypatch):
    without_latency(monkeypatch)
    world.report = report(verifier=str(world.verifier), num_speculative_tokens=5)
    with pytest.raises(UserError, match=r"num_speculative_tokens is 5, not 3.* Fix:"):
        run(world)
    assert world.engine.replies == 0


def test_results_of_an_earlier_run_do_not_survive_a_refusal(world, monkeypatch):
    without_latency(monkeypatch)
    run(world)
    world.report = report(verifier=str(world.verifier), method="other")
    with pytest.raises(UserError):
        run(world)
    assert list(world.out.iterdir()) == []


def test_a_reply_that_cannot_fit_is_refused_before_any_request(world, monkeypatch):
    without_latency(monkeypatch)
    world.engine.fake.models[0]["max_model_len"] = 40
    world.report = report(verifier=str(world.verifier), max_model_len=512)
    with pytest.raises(UserError, match=r"max_model_len = 40: .* Fix: raise serve.max_model_len"):
        run(world)
    assert world.engine.replies == 0


def test_a_server_that_fails_at_most_prompts_ends_the_run(world, monkeypatch):
    without_latency(monkeypatch)
    monkeypatch.setattr("harness.evaluation.client.RETRY_PAUSE_S", 0.0)
    good = world.engine.reply

    def reply(body):
        return Scripted(status=500) if "0" not in body["messages"][0]["content"] else good(body)

    world.engine.fake.reply = reply
    with pytest.raises(RuntimeError, match=r"variant: 4 of 6 replies failed, first .*word_problems-1"):
        run(world)
    assert not (world.out / "replies.jsonl").exists()


def test_more_latency_requests_than_prompts_are_refused_before_the_server_starts(world):
    write_jsonl(world.prompts, ROWS[:1])
    with pytest.raises(UserError, match=r"holds 1 prompts of word_problems, evaluate.latency.requests = 2 .* Fix:"):
        run(world)


@pytest.mark.slow
def test_every_file_of_a_variant_is_written(world):
    run(world)
    assert {path.name for path in world.out.iterdir()} == set(measuring.FILES)
    latency = json.loads((world.out / "latency.json").read_text())["concurrency"]["1"]
    assert (latency["requests"], latency["failures"], latency["output_tokens"]) == (2, 0, 10)
    assert [record["id"] for record in latency["records"]] == ["word_problems-0", "word_problems-1"]


def refused(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["evaluation", *map(str, arguments)])
    with pytest.raises(UserError) as caught:
        main()
    return str(caught.value)


def test_match_writes_its_file_with_provenance(tmp_path, monkeypatch):
    row = {"id": "a", "source": "s", "prompt_token_ids": [1], "token_ids": [2], "token_texts": ["x"],
           "top_logprobs": [[[2, -0.1], [3, -4.0]]], "spec": None}  # fmt: skip
    for name in ("none", "variant"):
        write_jsonl(tmp_path / name / "replies.jsonl", [row])
    arguments = ["match", "--settings", '{"near_tie_nats": 0.5, "scale": "full"}', "--base", tmp_path / "none"]
    arguments += ["--variant", tmp_path / "variant", "--out", tmp_path / "match.json"]
    monkeypatch.setattr(sys, "argv", ["evaluation", *map(str, arguments)])
    main()
    found = json.loads((tmp_path / "match.json").read_text())
    assert (found["exact"], found["total"], found["provenance"]["scale"]) == (1, 1, "full")


def test_match_without_replies_names_the_file_and_the_step(tmp_path, monkeypatch):
    said = refused(monkeypatch, "match", "--settings", '{"near_tie_nats": 0.5, "scale": "full"}', "--base", tmp_path,
                   "--variant", tmp_path, "--out", tmp_path / "match.json")  # fmt: skip
    assert said.startswith(
        f"{tmp_path / 'replies.jsonl'}: no such file. Fix: run `python -m harness.evaluation measure`"
    )


def test_an_unknown_setting_is_named(tmp_path, monkeypatch):
    said = refused(monkeypatch, "match", "--settings", '{"near_tie_nat": 0.5, "scale": "full"}', "--base", tmp_path,
                   "--variant", tmp_path, "--out", tmp_path / "match.json")  # fmt: skip
    assert "near_tie_nats" in said


def test_the_command_ends_with_code_2_and_one_line(tmp_path):
    command = [
        sys.executable,
        "-m",
        "harness.evaluation",
        "measure",
        "--settings",
        json.dumps(SETTINGS),
        "--variant",
        "v",
    ]
    for name in ("model", "verifier", "prompts", "out"):
        command += [f"--{name}", str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"error: {tmp_path / 'prompts'}: no such file. Fix: run")
    assert "Traceback" not in done.stderr
