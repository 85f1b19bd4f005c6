"""Steps without a draft: what the drafter inside the engine notes, and which of its notes count."""

import json
from types import SimpleNamespace

import pytest

from harness.evaluation.verification import step_times
from harness.serving.blind_drafts import NOTES, BlindDrafts, speculative_config


def note(at_s, drafted, requests=1, continues=True):
    return {"at_s": at_s, "drafted": drafted, "requests": requests, "continues": continues}


def test_the_time_to_the_next_call_is_that_of_the_step_with_these_drafts():
    # Lengths 0, 1, 2 take 1, 2 and 4 s; the last call only ends the second round.
    notes = [note(at_s, drafted) for at_s, drafted in [(0, 0), (1, 1), (3, 2), (7, 0), (8, 1), (10, 2), (14, 0)]]
    assert step_times(notes, 2, 1) == [[1, 2, 4], [1, 2, 4]]


def test_a_round_across_two_requests_does_not_count():
    notes = [note(0, 0), note(1, 1), note(9, 2, continues=False), note(10, 0), note(11, 1), note(13, 2), note(17, 0)]
    assert step_times(notes, 2, 1) == [[1, 2, 4]]


def test_a_round_begins_where_nothing_is_drafted():
    notes = [note(0, 1), note(1, 2), note(2, 0), note(3, 1), note(5, 2)]
    assert step_times(notes, 2, 1) == []
    assert step_times([*notes, note(9, 0)], 2, 1) == [[1, 2, 4]]


def test_only_rounds_with_the_wanted_number_of_requests_count():
    notes = [note(0, 0, 4), note(1, 1, 4), note(3, 0, 4), note(4, 1, 3), note(5, 0, 3)]
    assert step_times(notes, 1, 4) == [[1, 2]]
    assert step_times(notes, 1, 2) == []


def made(tmp_path, monkeypatch, rank):
    monkeypatch.setenv(NOTES, str(tmp_path / "steps"))
    settings = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=2), parallel_config=SimpleNamespace(rank=rank)
    )
    return BlindDrafts(settings), tmp_path / "steps"


@pytest.fixture
def drafter(tmp_path, monkeypatch):
    return made(tmp_path, monkeypatch, rank=0)


def test_other_ranks_of_an_engine_draft_the_same_and_note_nothing(tmp_path, monkeypatch):
    blind, path = made(tmp_path, monkeypatch, rank=1)
    assert [len(blind.propose([[5]], [10 + step], None)[0]) for step in range(3)] == [0, 1, 2]
    assert not path.exists()


def test_it_drafts_every_length_in_turn_for_all_requests(drafter):
    blind, _ = drafter
    lengths = [len(blind.propose([[5], [6]], [10 + step, 20 + step], None)[1]) for step in range(5)]
    assert lengths == [0, 1, 2, 0, 1]


def test_it_drafts_nothing_for_a_prompt_that_is_not_read_yet(drafter):
    blind, _ = drafter
    blind.propose([[5]], [10], None)
    assert blind.propose([[], [6]], [10, 20], None) == [[], [0]]


def test_it_knows_a_batch_that_goes_on_from_a_new_one(drafter):
    blind, path = drafter
    # Two tokens were accepted with the bonus; then another request comes in.
    for given, lengths in [([[5]], [10]), ([[6]], [11]), ([[7, 8]], [13]), ([[9], [1]], [14, 30])]:
        blind.propose(given, lengths, None)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["continues"] for line in lines] == [False, True, True, False]
    assert [line["requests"] for line in lines] == [1, 1, 1, 2]


def test_vllm_finds_the_drafter_by_its_name():
    told = speculative_config(7)
    module, _, name = told["model"].rpartition(".")
    assert getattr(__import__(module, fromlist=[name]), name) is BlindDrafts
    assert (told["method"], told["num_speculative_tokens"]) == ("custom_class", 7)
