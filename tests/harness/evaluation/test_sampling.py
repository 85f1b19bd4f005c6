"""Sampled replies: what is asked, and where in a verification step each token stood."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.evaluation.replies import Prompts
from harness.evaluation.sampling import chosen_ids, collect, places
from harness.sections.evaluate import Sampling
from tests import toy
from tests.harness.evaluation.fake_server import MODEL, Scripted, fake_server

ROWS = [
    {"id": f"{source}-{i}", "source": source, "messages": [{"role": "user", "content": f"{source} {i}"}]}
    for source, count in (("word_problems", 3), ("instructions", 1)) for i in range(count)
]  # fmt: skip


def row(length, accepted=None, drafted=None):
    spec = None if accepted is None else {"accepted_per_step": accepted, "drafted_per_step": drafted}
    return {"token_ids": list(range(length)), "spec": spec}


def test_places_of_a_reply_by_hand():
    """The prefill's token; two accepted and one replaced; all three accepted and the bonus; one replaced at once."""
    found = places(row(9, [2, 3, 0], [3, 3, 3]))
    steps = (["draft 1", "draft 2", "draft 3"], ["draft 1", "draft 2", "draft 3", "bonus"], ["draft 1"])
    assert found == ["plain", *steps[0], *steps[1], *steps[2]]


def test_a_reply_that_ends_within_a_step_has_no_place_beyond_its_end():
    assert places(row(3, [3], [3])) == ["plain", "draft 1", "draft 2"]


def test_without_drafting_every_place_is_plain():
    assert places(row(4)) == ["plain"] * 4


def test_steps_that_left_no_record_leave_no_place_known():
    assert places(row(9, [2], [3])) is None


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)).map(sorted), max_size=8), st.integers(0, 3))
def test_every_token_has_one_place_and_a_bonus_follows_drafts_that_were_all_accepted(steps, cut):
    accepted, drafted = [a for a, _ in steps], [max(d, 1) for _, d in steps]
    length = max(1, 1 + sum(a + 1 for a in accepted) - cut)
    found = places(row(length, accepted, drafted))
    assert len(found) == length and found[0] == "plain" and found.count("plain") == 1
    assert found.count("bonus") <= sum(a == d for a, d in zip(accepted, drafted, strict=True))


@pytest.fixture
def prompts(tmp_path):
    toy.write_tokenizer(tmp_path)
    return Prompts(ROWS, tmp_path, None)


def test_prompts_are_taken_from_the_sources_in_turn(prompts):
    assert [prompt_id for prompt_id, _ in chosen_ids(prompts, 3)] == [
        "word_problems-0",
        "instructions-0",
        "word_problems-1",
    ]
    assert len(chosen_ids(prompts, 99)) == len(ROWS)


def test_every_reply_is_asked_for_with_a_seed_of_its_own_and_the_temperature(prompts):
    settings = Sampling(prompts=2, samples=3, max_new_tokens=5, temperature=0.7, concurrency=2)
    tokens = {tuple(map(str, ids)): prompt_id for prompt_id, ids in prompts.token_ids.items()}

    def reply(body):
        content = body["messages"][-1]["content"]
        prompt_id = next(r["id"] for r in ROWS if r["messages"][0]["content"] == content)
        return Scripted(prompt_token_ids=prompts.token_ids[prompt_id])

    with fake_server(reply) as fake:
        rows = collect(fake.url, MODEL, prompts, settings, 0, "some")
        again = collect(fake.url, MODEL, prompts, settings, 0, "some")
        other = collect(fake.url, MODEL, prompts, settings, 0, "other")
    assert len(tokens) == len(ROWS) and [r["id"] for r in rows] == ["word_problems-0"] * 3 + ["instructions-0"] * 3
    seeds = [[r["seed"] for r in run] for run in (rows, again, other)]
    assert seeds[0] == seeds[1] and len({*seeds[0], *seeds[2]}) == 12
    bodies = fake.bodies[:6]
    assert {b["seed"] for b in bodies} == set(seeds[0])
    assert {(b["temperature"], b["top_p"], b["top_k"], b["max_completion_tokens"]) for b in bodies} == {
        (0.7, 1.0, 0, 5)
    }
    assert rows[0]["likeliest"] == [(10, -0.1), (11, -0.1)]


def test_failed_replies_are_left_out(prompts, monkeypatch):
    monkeypatch.setattr("harness.evaluation.client.RETRY_PAUSE_S", 0.0)
    settings = Sampling(prompts=1, samples=2)
    with fake_server(lambda _: Scripted(status=500)) as fake:
        assert collect(fake.url, MODEL, prompts, settings, 0, "some") == []
        assert httpx.get(f"{fake.url}/v1/models").is_success
