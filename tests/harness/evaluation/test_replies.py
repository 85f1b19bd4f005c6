"""Replies from a server: explicit sampling fields, retries, refusals, prompts checked token by token."""

import threading

import pytest

from harness.data.chat import load_tokenizer, prompt_token_ids
from harness.errors import UserError
from harness.evaluation.client import Answer, Chat, check_server
from harness.evaluation.replies import Prompts, as_row
from tests import toy
from tests.harness.evaluation.fake_server import MODEL, Scripted, fake_server

MESSAGES = [{"role": "user", "content": "Say hi."}]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr("harness.evaluation.client.RETRY_PAUSE_S", 0.0)


def ask_one(fake, **options):
    (answer,) = Chat(fake.url, MODEL, 8, seed=3, **options).ask_all([("a", MESSAGES)], 1, "test")
    return answer


def test_every_sampling_field_is_spelled_out():
    with fake_server() as fake:
        ask_one(fake, logprobs=True)
    assert fake.bodies == [{
        "model": MODEL, "messages": MESSAGES, "max_completion_tokens": 8, "return_token_ids": True,
        "temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "repetition_penalty": 1.0, "seed": 3, "n": 1,
        "logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True,
    }]  # fmt: skip


def test_an_answer_holds_ids_texts_candidates_and_verify_steps():
    sums = {"num_spec_steps": 1, "num_draft_tokens": 3, "num_accepted_draft_tokens": 1}
    spec = {"per_step_accepted": [1], "per_step_drafted": [3], "num_spec_tokens": 3, **sums}
    candidates = [[(7, -0.1), (4, -2.0)], [(8, -0.2), (5, -2.1)], [(9, -0.3), (6, -2.2)]]
    scripted = Scripted([["Hi"], ["!", "\n"]], [7, 8, 9], top_logprobs=candidates, finish_reason="length", spec=spec)
    with fake_server(lambda _: scripted) as fake:
        answer = ask_one(fake, logprobs=True)
    assert (answer.text, answer.token_ids, answer.token_texts) == ("Hi!\n", [7, 8, 9], ["Hi", "!", "\n"])
    assert answer.top_logprobs == candidates
    assert answer.spec == {"accepted_per_step": [1], "drafted_per_step": [3]}
    assert answer.spec_sums == (1, 3, 1)
    assert (answer.finish_reason, answer.error) == ("length", None)
    assert answer.latency_s > 0


def test_a_server_that_records_no_steps_gives_none():
    with fake_server() as fake:
        assert ask_one(fake).spec is None


def test_a_reply_of_one_token_has_no_verify_steps():
    # The server leaves the two lists out when they are empty.
    with fake_server(lambda _: Scripted(spec={"num_spec_steps": 0})) as fake:
        assert ask_one(fake).spec == {"accepted_per_step": [], "drafted_per_step": []}


def test_null_content_is_an_empty_text():
    with fake_server(lambda _: Scripted(content_is_null=True)) as fake:
        answer = ask_one(fake)
    assert (answer.text, answer.error) == ("", None)


def failing(*statuses):
    """Replies with these statuses one after another, then with 200."""
    left, lock = list(statuses), threading.Lock()

    def reply(_):
        with lock:
            return Scripted(status=left.pop(0) if left else 200)

    return reply


def test_a_failed_request_is_tried_again():
    with fake_server(failing(500, 503)) as fake:
        assert ask_one(fake).error is None
    assert len(fake.bodies) == 3


def test_a_request_that_keeps_failing_is_kept_as_a_failure():
    with fake_server(failing(500, 500, 500)) as fake:
        answer = ask_one(fake)
    assert answer == Answer("a", error=answer.error)
    assert "status 500" in answer.error
    assert len(fake.bodies) == 3


def test_a_refused_request_is_not_repeated():
    with fake_server(failing(400)) as fake:
        assert "status 400" in ask_one(fake).error
    assert len(fake.bodies) == 1


def test_a_server_that_is_gone_is_a_failure_with_its_reason():
    with fake_server() as fake:
        pass
    assert "Connect" in ask_one(fake).error


def test_answers_keep_the_order_of_the_prompts_whatever_finishes_first():
    def reply(body):
        number = int(body["messages"][0]["content"])
        return Scripted(chunks=[[str(number)]], first_delay_s=0.05 * (4 - number))

    prompts = [(f"p{i}", [{"role": "user", "content": str(i)}]) for i in range(4)]
    with fake_server(reply) as fake:
        answers = Chat(fake.url, MODEL, 8, seed=0).ask_all(prompts, 4, "test")
    assert [(answer.id, answer.text) for answer in answers] == [(f"p{i}", str(i)) for i in range(4)]


def test_a_model_name_that_is_not_served_is_named():
    with fake_server() as fake, pytest.raises(UserError, match=r"serves toy, not 'other'. Fix:"):
        check_server(fake.url, "other", 10)


@pytest.mark.parametrize(("longest", "refused"), [(511, False), (512, False), (513, True)])
def test_a_length_beyond_the_servers_limit_is_refused_before_any_request(longest, refused):
    with fake_server() as fake:
        if refused:
            with pytest.raises(UserError, match=r"max_model_len = 512: .* 513 tokens. Fix: raise"):
                check_server(fake.url, MODEL, longest)
        else:
            check_server(fake.url, MODEL, longest)
        assert fake.bodies == []


@pytest.fixture
def verifier(tmp_path):
    toy.write_tokenizer(tmp_path)
    return tmp_path


ROWS = [
    {"id": f"p{i}", "source": "word_problems", "messages": [{"role": "user", "content": f"{i}+{i}?"}]} for i in range(3)
]


def test_replies_to_prompts_as_in_training_pass(verifier):
    prompts, tokenizer = Prompts(ROWS, verifier, "Be brief."), load_tokenizer(verifier)
    right = {row["id"]: prompt_token_ids(tokenizer, row["messages"], "Be brief.") for row in ROWS}
    with fake_server(lambda body: Scripted(prompt_token_ids=prompt_token_ids(tokenizer, body["messages"]))) as fake:
        answers = prompts.ask(Chat(fake.url, MODEL, 8, seed=0), ROWS, 2, "test")
    assert {answer.id: answer.prompt_token_ids for answer in answers} == right
    assert all(body["messages"][0] == {"role": "system", "content": "Be brief."} for body in fake.bodies)


def test_a_prompt_that_the_server_tokenised_otherwise_is_refused_by_name(verifier):
    prompts, tokenizer = Prompts(ROWS, verifier, None), load_tokenizer(verifier)

    def reply(body):
        return Scripted(prompt_token_ids=[toy.TURN_START_ID, *prompt_token_ids(tokenizer, body["messages"])])

    with fake_server(reply) as fake, pytest.raises(UserError, match=r"^p0: .*part at token 1. Fix:"):
        prompts.ask(Chat(fake.url, MODEL, 8, seed=0), ROWS, 2, "test")


def test_a_failed_reply_is_no_reason_to_refuse_the_prompts(verifier):
    Prompts(ROWS, verifier, None).check([Answer("p0", error="status 500")])


def test_the_first_prompts_of_a_source_are_the_same_every_time(verifier):
    prompts = Prompts([*ROWS, ROWS[0] | {"id": "i0", "source": "instructions"}], verifier, None)
    chosen, others = prompts.first("word_problems", 2)
    assert [key for key, _ in chosen] == ["p0", "p1"]
    assert [key for key, _ in others] == ["p2"]


def test_a_row_of_replies_jsonl_has_all_that_later_steps_read():
    row = as_row(Answer("a", text="x", prompt_token_ids=[1], token_ids=[2], finish_reason="stop"), "instructions")
    assert row.keys() == {
        "id", "source", "prompt_token_ids", "token_ids", "token_texts", "text", "finish_reason", "top_logprobs",
        "latency_s", "spec",
    }  # fmt: skip


def test_a_text_is_compared_with_the_tokenizers_own_reading_of_it(verifier):
    prompts, text = Prompts(ROWS, verifier, "Be brief."), "Question: 1+1?\nAnswer:"
    ids = load_tokenizer(verifier)(text)["input_ids"]
    prompts.check([Answer("p0", prompt_token_ids=ids)], {"p0": text})
    with pytest.raises(UserError, match=rf"^p0: .* has {len(ids) - 1} tokens, not {len(ids)} as in training"):
        prompts.check([Answer("p0", prompt_token_ids=ids[:-1])], {"p0": text})  # cut by the server
