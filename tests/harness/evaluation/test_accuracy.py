"""lm-eval's scoring of canned replies through harness.evaluation.accuracy."""

import httpx
import pytest

from harness.evaluation.client import Answer, Chat
from harness.sections.evaluate import Accuracy
from tests.harness.evaluation.fake_server import MODEL, Scripted, fake_server

# (reply, gold answer, strict, flexible): the eight forms of answer that people saw scored wrongly.
CANNED = [
    ("She has 9 + 9 = 18.\n#### 18", "18", 1, 1),
    ("**Answer: \\$18 per day.**", "18", 0, 1),
    ("18.", "18", 0, 1),
    ("It costs 1,800", "1800", 0, 1),
    ("-3", "-3", 0, 1),
    ("\\boxed{18}", "18", 0, 1),
    ("It is 18. So the answer is 18", "18", 0, 1),
    ("I cannot say.", "18", 0, 0),
]


def settings(**changes):
    return Accuracy(**{"tasks": ["word_problems"], "limit": 100, "max_new_tokens": 8, "concurrency": 2} | changes)


def problems(golds, source="word_problems"):
    return [
        {
            "id": f"p{i}",
            "source": source,
            "messages": [{"role": "user", "content": f"problem {i}"}],
            "answer": f"so\n#### {gold}",
        }
        for i, gold in enumerate(golds)
    ]


def measured(rows, answers, system_prompt=None, **changes):
    """accuracy.json's tasks for `answers`: (problem id, messages) -> Answer."""
    from harness.evaluation.accuracy import measure_accuracy

    found = measure_accuracy(
        rows, lambda prompts, _: [answers(*prompt) for prompt in prompts], system_prompt, settings(**changes)
    )
    assert found["versions"]["lm-eval"]
    return found["tasks"]


def test_strict_and_flexible_scores_of_canned_replies():
    def answers(prompt_id, _):
        return Answer(prompt_id, text=CANNED[int(prompt_id[1:])][0], finish_reason="stop")

    found = measured(problems([gold for _, gold, _, _ in CANNED]), answers)["word_problems"]
    expected = [{"id": f"p{i}", "strict": case[2], "flexible": case[3]} for i, case in enumerate(CANNED)]
    assert found["per_problem"] == expected
    assert (found["strict"], found["flexible"], found["n"]) == (1 / 8, 7 / 8, 8)
    assert found["strict_low"] < 1 / 8 < found["strict_high"]
    assert found["scores_disagree"]
    assert not found["invalid"]
    assert found["task_version"] == 1.0


def test_empty_cut_and_failed_replies_are_counted_apart_and_spoil_the_score():
    texts = {
        "p0": Answer("p0", text="#### 1", finish_reason="stop"),
        "p1": Answer("p1", text=" ", finish_reason="stop"),
        "p2": Answer("p2", text="well, 1", finish_reason="length"),
        "p3": Answer("p3", error="status 500"),
    }
    rows = problems(["1"] * 4)
    found = measured(rows, lambda prompt_id, _: texts[prompt_id])["word_problems"]
    assert (found["n"], found["empty"], found["cut"], found["failed"]) == (4, 1, 1, 1)
    assert (found["strict"], found["flexible"]) == (0.25, 0.5)
    assert found["invalid"]
    assert not measured(rows, lambda prompt_id, _: texts[prompt_id], error_share_max=0.5)["word_problems"]["invalid"]


def served(fake, rows, task="word_problems"):
    """One task's part of accuracy.json, asked from a scripted server."""
    from harness.evaluation.accuracy import measure_accuracy

    chat = Chat(fake.url, MODEL, 8, seed=0)
    found = measure_accuracy(
        rows, lambda prompts, stop: chat.ask_all(prompts, 2, "test", stop), None, settings(tasks=[task])
    )
    return found["tasks"][task]


def test_the_faults_of_a_server_reach_their_own_counts(monkeypatch):
    monkeypatch.setattr("harness.evaluation.client.RETRY_PAUSE_S", 0.0)
    scripted = {
        "problem 0": Scripted(content_is_null=True, reasoning="Let me think", finish_reason="length"),
        "problem 1": Scripted(chunks=[[]]),
        "problem 2": Scripted(status=500),
        "problem 3": Scripted(chunks=[["#### ", "4"]]),
    }
    with fake_server(lambda body: scripted[body["messages"][-1]["content"]]) as fake:
        task = served(fake, problems("1234"))
    assert (task["n"], task["thinking_only"], task["empty"], task["failed"], task["cut"]) == (4, 1, 1, 1, 1)
    assert (task["strict"], task["invalid"]) == (0.25, True)
    assert len(fake.bodies) == 3 + 3  # the failing one three times


def test_a_request_that_fails_twice_and_then_succeeds_is_an_ordinary_reply(monkeypatch):
    monkeypatch.setattr("harness.evaluation.client.RETRY_PAUSE_S", 0.0)
    replies = iter([Scripted(status=500), Scripted(status=500), Scripted(chunks=[["#### ", "1"]])])
    with fake_server(lambda _: next(replies)) as fake:
        task = served(fake, problems("1"))
    assert (task["n"], task["failed"], task["empty"], task["strict"], task["invalid"]) == (1, 0, 0, 1.0, False)


def five_shot(golds):
    rows = problems(golds, "gsm8k_5shot")
    return [
        row | {"messages": [{"role": "user", "content": f"Question: 1+1?\nAnswer: 2\n\nQuestion: {i}?\nAnswer:"}]}
        for i, row in enumerate(rows)
    ]


def test_a_five_shot_task_sends_a_text_to_continue_and_stops_at_the_next_question():
    with fake_server(lambda _: Scripted(chunks=[[" So 4.\n", "#### ", "4"]])) as fake:
        task = served(fake, five_shot(["4", "5"]), "gsm8k_5shot")
    assert (task["strict"], task["flexible"], task["n"]) == (0.5, 0.5, 2)
    assert fake.paths == ["/v1/completions"] * 2
    for body in fake.bodies:
        assert body["prompt"].endswith("?\nAnswer:")
        assert (body["stop"], body["max_tokens"], body["temperature"]) == (["Question:"], 8, 0.0)
        assert not body.keys() & {"messages", "max_completion_tokens"}


def test_the_routes_take_only_what_belongs_there():
    with fake_server() as fake:
        chat = Chat(fake.url, MODEL, 8, seed=0)
        turns, text = chat.ask_all([("a", [{"role": "user", "content": "Hi"}]), ("b", "Hi")], 1, "test")
        assert (turns.error, text.error, text.text) == (None, None, "Hi!")
        assert text.prompt_token_ids == [1, 2, 3]
        swapped = httpx.post(f"{fake.url}/v1/chat/completions", json={"model": MODEL, "prompt": "Hi"})
        assert swapped.status_code == 400


def test_lm_evals_own_client_gets_the_same_scores_from_the_same_server():
    """Why `ServedModel` may stand in its place: on replies that do not fail, nothing changes."""
    from lm_eval.evaluator import evaluate
    from lm_eval.models.openai_completions import LocalChatCompletion
    from lm_eval.tasks import TaskManager

    from harness.evaluation.accuracy import TASKS

    rows = problems([gold for _, gold, _, _ in CANNED])
    texts = {row["messages"][-1]["content"]: case[0] for row, case in zip(rows, CANNED, strict=True)}
    with fake_server(lambda body: Scripted(chunks=[[texts[body["messages"][-1]["content"]]]])) as fake:
        ours = served(fake, rows)
        client = LocalChatCompletion(
            base_url=f"{fake.url}/v1/chat/completions", model=MODEL, num_concurrent=1, max_length=64
        )
        tasks = TaskManager(include_path=str(TASKS), include_defaults=False, metadata={"rows": rows})
        results = evaluate(client, tasks.load(["specproof_word_problems"]), apply_chat_template=True, bootstrap_iters=0)
    theirs = results["results"]["specproof_word_problems"]
    assert ours["strict"] == theirs["exact_match,strict-match"] == 1 / 8
    assert ours["flexible"] == theirs["exact_match,flexible-extract"] == 7 / 8


def test_the_system_turn_and_the_user_turn_reach_the_server_as_they_are():
    seen = {}

    def answers(prompt_id, messages):
        seen[prompt_id] = messages
        return Answer(prompt_id, text="#### 1", finish_reason="stop")

    measured(problems(["1"]), answers, system_prompt="Be brief.")
    assert seen["p0"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "problem 0"}]
    measured(problems(["1"]), answers)
    assert seen["p0"] == [{"role": "user", "content": "problem 0"}]


def test_the_limit_takes_the_first_problems():
    asked = []

    def answers(prompt_id, _):
        asked.append(prompt_id)
        return Answer(prompt_id, text="#### 1", finish_reason="stop")

    assert measured(problems("11111"), answers, limit=2)["word_problems"]["n"] == 2
    assert asked == ["p0", "p1"]


@pytest.mark.parametrize("rows", [[], [{"id": "i", "source": "gsm8k", "messages": [], "answer": None}]])
def test_a_task_without_problems_says_why_it_did_not_run(rows):
    found = measured(rows, lambda *_: pytest.fail("nothing to ask"), tasks=["gsm8k"])
    assert found == {"gsm8k": {"not_run": "no held-out prompts of gsm8k with an answer"}}


def test_the_turns_before_a_question_are_sent_with_it():
    solved = [{"role": "user", "content": "2 and 2?"}, {"role": "assistant", "content": "#### 4"}]
    rows = [row | {"messages": [*solved, *row["messages"]]} for row in problems(["18", "18"])]
    asked = {}

    def answers(prompt_id, messages):
        asked[prompt_id] = messages
        return Answer(prompt_id, text="#### 18", finish_reason="stop")

    assert measured(rows, answers, "Be brief.")["word_problems"]["strict"] == 1.0
    system = {"role": "system", "content": "Be brief."}
    assert asked == {row["id"]: [system, *row["messages"]] for row in rows}


def test_a_question_about_an_image_is_sent_with_its_image():
    from PIL import Image

    from harness.data.images import turn_about

    asked = [turn_about(Image.new("RGB", (32, 32)), "How many?")]
    row = {"id": "p0", "source": "image_questions", "messages": asked, "answer": "I see 2.\n#### 2"}
    sent = {}

    def answers(prompt_id, messages):
        sent[prompt_id] = messages
        return Answer(prompt_id, text="#### 2", finish_reason="stop")

    found = measured([row], answers, "Be brief.", tasks=["image_questions"])["image_questions"]
    assert found["strict"] == 1.0
    assert sent["p0"] == [{"role": "system", "content": "Be brief."}, *asked]
