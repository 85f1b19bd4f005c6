"""Second turns follow the model's own first replies."""

from harness.evaluation.client import Answer
from harness.evaluation.match import compare
from harness.evaluation.turns import longest_conversation, next_turns, turn_of
from tests.harness.evaluation.test_match import SETTINGS, reply

ROW = {
    "id": "mt_bench-heldout-00003",
    "source": "mt_bench",
    "category": "writing",
    "answer": None,
    "messages": [{"role": "user", "content": "Write a poem."}],
    "turns": ["Now in prose.", "Shorter."],
}


def test_the_next_turn_comes_after_the_models_own_reply():
    (second,) = next_turns([ROW], [Answer(ROW["id"], text="Roses are red.")])
    assert [turn["content"] for turn in second["messages"]] == ["Write a poem.", "Roses are red.", "Now in prose."]
    assert [turn["role"] for turn in second["messages"]] == ["user", "assistant", "user"]
    assert (second["id"], second["source"], second["category"]) == (f"{ROW['id']}#turn2", "mt_bench", "writing")
    assert ROW["turns"] == ["Now in prose.", "Shorter."], "the row itself stays"


def test_turns_end_when_none_is_left():
    (second,) = next_turns([ROW], [Answer(ROW["id"], text="A")])
    (third,) = next_turns([second], [Answer(second["id"], text="B")])
    assert (third["id"], third["messages"][-1]["content"]) == (f"{ROW['id']}#turn3", "Shorter.")
    assert next_turns([third], [Answer(third["id"], text="C")]) == []
    assert [turn_of(each["id"]) for each in (ROW, second, third)] == [1, 2, 3]


def test_nothing_is_asked_after_a_reply_that_failed():
    rows = [ROW, ROW | {"id": "b"}, {key: ROW[key] for key in ROW if key != "turns"} | {"id": "c"}]
    answers = [Answer(ROW["id"], error="status 500"), Answer("b", text="B"), Answer("c", text="C")]
    assert [row["id"] for row in next_turns(rows, answers)] == ["b#turn2"]


def test_the_longest_conversation_holds_every_turn():
    messages = longest_conversation(ROW)
    assert [turn["content"] for turn in messages] == ["Write a poem.", "", "Now in prose.", "", "Shorter."]


def test_second_turns_after_different_first_replies_are_not_compared():
    base = [reply("a", [5, 6]), reply("a#turn2", [7], prompt=(1, 2, 3)), reply("b#turn2", [8])]
    variant = [reply("a", [5, 9], margins=[5.0, 0.1]), reply("a#turn2", [7], prompt=(1, 2, 4)), reply("b#turn2", [8])]
    found = compare(base, variant, SETTINGS)
    assert (found["exact"], found["total"], found["missing"]) == (1, 2, ["a#turn2"])
