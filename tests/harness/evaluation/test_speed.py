"""What the speed file says, from result files written by hand: every figure is worked out beside its test."""

import json
from contextlib import nullcontext

import pytest

from harness.errors import UserError
from harness.evaluation.settings import SpeedSettings
from harness.evaluation.speed import load_of, measure_speed, steps_until
from harness.files import write_json, write_jsonl

SETTINGS = SpeedSettings(benchmark="word_problems", bootstrap_resamples=200, seed=0, scale="smoke")
IDS = ("a", "b", "c", "d")
TOKENS = 13  # 12 after the first
FIRST_MS = 100.0


def latency(seconds_after_first, ids=IDS, tokens=TOKENS, invalid=False):
    records = [
        {"id": each, "output_tokens": tokens, "latency_s": FIRST_MS / 1000 + seconds_after_first, "ttft_ms": FIRST_MS}
        for each in ids
    ]
    return {"concurrency": {"1": {"records": records, "invalid": invalid}}}


def reply(prompt, accepted, drafted, tokens=TOKENS):
    spec = {"accepted_per_step": accepted, "drafted_per_step": drafted}
    asked = {"id": prompt, "source": "word_problems", "prompt_token_ids": [1, 2]}
    return asked | {"token_ids": list(range(tokens)), "spec": spec}


def write(folder, seconds_after_first, accepted=None, drafted=None, draft_tokens=0, **changes):
    """A folder as `measure` leaves it; `accepted` by step is the same for each prompt."""
    rows = [reply(each, accepted, drafted) for each in IDS] if accepted else []
    write_jsonl(folder / "replies.jsonl", rows)
    write_json(folder / "latency.json", latency(seconds_after_first, **changes))
    write_json(folder / "acceptance.json", {"num_speculative_tokens": draft_tokens})
    return folder


@pytest.fixture
def folders(tmp_path):
    """Base: 12 steps of 0.1 s. Draft, K = 3: 4 steps of 0.2 s with 3, 3, 1, 1 accepted. Verification: see its test."""
    base = write(tmp_path / "none", 1.2)
    draft = write(tmp_path / "draft", 0.8, [3, 3, 1, 1], [3, 3, 3, 3], draft_tokens=3)
    write_json(tmp_path / "verification.json", {"step_seconds": {"1": [[0.30, 0.31, 0.33, 0.36]] * 3}})
    return base, draft, tmp_path / "verification.json"


def swept(tmp_path, draft_tokens, seconds_after_first, accepted):
    rows = [reply(each, accepted, [draft_tokens] * len(accepted)) for each in IDS]
    content = {"num_speculative_tokens": draft_tokens, "replies": rows, "latency": latency(seconds_after_first)}
    write_json(tmp_path / f"k{draft_tokens}.json", content)
    return tmp_path / f"k{draft_tokens}.json"


def points(found):
    return {point["draft_tokens"]: point for point in found["concurrency"]["1"]["points"]}


def test_steps_are_counted_up_to_the_tokens_that_were_timed():
    accepted = [3, 0, 2]  # 4, 1 and 3 tokens
    assert [steps_until(tokens, accepted) for tokens in (1, 4, 5, 6, 8)] == [1, 1, 2, 3, 3]
    assert steps_until(9, accepted) is None, "the reply is too short to tell"


def test_a_reply_of_one_token_times_no_step():
    assert load_of([{"id": "a", "output_tokens": 1, "latency_s": 0.1, "ttft_ms": 100.0}], None) == {}


def test_a_step_is_divided_into_verification_and_draft(folders):
    base, draft, timed = folders
    found = points(measure_speed(base, draft, timed, [], SETTINGS))
    assert sorted(found) == [0, 3], "nothing is made up between the two lengths that were served"
    # Three tokens to verify took 0.06 s more than none, so that 0.04 s of the 0.2 s are the draft's.
    assert found[3]["step_s"]["value"] == pytest.approx(0.2)
    assert found[3]["verify_s"]["value"] == pytest.approx(0.1 + 0.06)
    assert found[3]["draft_s"]["value"] == pytest.approx(0.04)
    assert found[3]["break_even_length"]["value"] == pytest.approx(2.0)
    assert found[0]["step_s"]["value"] == pytest.approx(0.1) and found[0]["draft_s"] is None


def test_without_timed_verification_the_parts_of_a_step_are_not_known(folders):
    base, draft, _ = folders
    found = points(measure_speed(base, draft, None, [], SETTINGS))
    assert found[3]["step_s"]["value"] == pytest.approx(0.2)
    assert found[3]["verify_s"] is None and found[3]["draft_s"] is None


def test_a_further_length_gives_the_steps_between_and_the_best_length(folders, tmp_path):
    base, draft, timed = folders
    # K = 1: 7 steps of 0.15 s, all but two accepted. The line 0.125 + 0.025 k gives 0.175 s at K = 2.
    found = measure_speed(base, draft, timed, [swept(tmp_path, 1, 1.05, [1, 1, 1, 1, 1, 0, 0])], SETTINGS)
    by_length = points(found)
    steps = {k: point["step_s"]["value"] for k, point in by_length.items()}
    assert steps == pytest.approx({0: 0.1, 1: 0.15, 2: 0.175, 3: 0.2})
    # Accepted at K = 3: 4/4, 2/4, 2/4; lengths 2, 2.5, 3, as many as were emitted (12 in 4 steps).
    lengths = {k: point["expected_length"]["value"] for k, point in by_length.items()}
    assert lengths == pytest.approx({0: 1, 1: 2, 2: 2.5, 3: 3})
    assert by_length[1]["measured_length"]["value"] == pytest.approx(12 / 7)
    # Tokens per second: 10, 13.3, 14.3, 15.
    level = found["concurrency"]["1"]
    assert (level["best_draft_tokens"], level["not_told_apart"]) == (3, [])
    assert level["fit"] == pytest.approx({"fixed_s": 0.125, "per_draft_s": 0.025, "points": 2, "residual_s": None})
    assert not by_length[2]["measured"] and by_length[2]["measured_speedup"] is None


def test_predicted_and_measured_speed_up_are_of_whole_requests(folders):
    base, draft, timed = folders
    found = points(measure_speed(base, draft, timed, [], SETTINGS))[3]
    # 1.3 s against 0.1 + 12 / 3 * 0.2 = 0.9 s; the served requests took 0.9 s too.
    assert found["predicted_speedup"]["value"] == pytest.approx(1.3 / 0.9)
    assert found["measured_speedup"]["value"] == pytest.approx(1.3 / 0.9)


def test_a_length_beyond_the_configured_one_counts_with_its_own_tokens(folders, tmp_path):
    base, draft, timed = folders
    # K = 5: 3 steps of 0.22 s for 12 tokens: 18.2 tokens per second, above the 15 of K = 3.
    found = measure_speed(base, draft, timed, [swept(tmp_path, 5, 0.66, [5, 3, 1])], SETTINGS)
    assert found["concurrency"]["1"]["best_draft_tokens"] == 5
    assert points(found)[5]["expected_length"]["value"] == pytest.approx(4.0)


def test_figures_say_their_draft_length_and_their_unit(folders):
    base, draft, timed = folders
    rows = {
        (row["metric"], row["benchmark"]): row for row in measure_speed(base, draft, timed, [], SETTINGS)["figures"]
    }
    assert rows["step_ms_k3", "word_problems"]["value"] == pytest.approx(200)
    assert rows["best_draft_tokens", "word_problems"]["value"] == 3
    assert rows["break_even_length_k3", "word_problems"]["n"] == len(IDS)
    assert ("verify_ms_k0", "word_problems") in rows


def test_a_load_with_too_many_failures_is_left_out(folders):
    base, draft, timed = folders
    write(base, 1.2, invalid=True)
    with pytest.raises(UserError, match="no request in common"):
        measure_speed(base, draft, timed, [], SETTINGS)


def test_what_was_not_measured_is_named(folders, tmp_path):
    base, draft, _ = folders
    with pytest.raises(UserError, match=r"k1\.json: no such file"):
        measure_speed(base, draft, None, [tmp_path / "k1.json"], SETTINGS)


def test_a_base_that_was_asked_other_prompts_is_refused(folders):
    base, draft, timed = folders
    for prompt, refused in (([1, 2], False), ([1, 3], True)):
        write_jsonl(base / "replies.jsonl", [reply("a", [], []) | {"spec": None, "prompt_token_ids": prompt}])
        with pytest.raises(UserError, match=r"a is another prompt there\. Fix:") if refused else nullcontext():
            measure_speed(base, draft, timed, [], SETTINGS)


def test_the_command_writes_the_file_with_its_provenance(folders, tmp_path, monkeypatch):
    from harness.evaluation.__main__ import main

    base, draft, timed = folders
    out = tmp_path / "speed.json"
    words = ["x", "speed", "--settings", SETTINGS.model_dump_json(), "--variant", "eagle3", "--base", str(base)]
    monkeypatch.setattr("sys.argv", [*words, "--measured", str(draft), "--verification", str(timed), "--out", str(out)])
    main()
    content = json.loads(out.read_text())
    assert content["variant"] == "eagle3" and content["provenance"]["seed"] == 0 and content["figures"]
