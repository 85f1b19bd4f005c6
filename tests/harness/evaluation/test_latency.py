"""Figures of harness.evaluation.latency: by hand from records, and through GuideLLM against a scripted server."""

import json
import time
from types import SimpleNamespace

import pytest

from harness.evaluation.latency import Arrivals, summarise
from harness.sections.evaluate import Latency
from tests import toy
from tests.harness.evaluation.fake_server import MODEL, Scripted, fake_server

PROMPTS = [(f"p{i}", [{"role": "user", "content": f"prompt {i}"}]) for i in range(4)]


def request(number, tokens=12, chunks=4, first_s=0.05, last_s=0.14, end_s=0.15, sent_s=0.0):
    """What GuideLLM keeps of one successful request that was sent at `sent_s`; the other times count from there."""
    timings = SimpleNamespace(
        first_token_iteration=sent_s + first_s, last_token_iteration=sent_s + last_s, token_iterations=chunks,
        request_start=sent_s, request_end=sent_s + end_s,
    )  # fmt: skip
    return SimpleNamespace(
        request_args=json.dumps({"body": {"messages": PROMPTS[number][1]}}),
        info=SimpleNamespace(timings=timings, error=None),
        output_tokens=tokens,
        response_metrics=None,
        request_latency=end_s,
        time_to_first_token_ms=first_s * 1000,
    )


def summary(done, failed=(), concurrency=1, failure_share_max=0.01, rate=None):
    arrivals = Arrivals(None, rate, "constant") if rate else Arrivals(concurrency)
    return summarise(done, failed, PROMPTS, arrivals, failure_share_max, seed=0, resamples=200)


def test_a_chunk_of_several_tokens_is_not_taken_for_one_token():
    # 12 tokens in 4 chunks of 3, 30 ms apart, the first after 50 ms.
    found = summary([request(0)])
    assert found["itl_ms"]["mean"] == pytest.approx(90 / 11, abs=1e-3)
    assert found["chunk_gap_ms"]["mean"] == pytest.approx(30)
    assert found["ttft_ms"]["mean"] == pytest.approx(50)
    assert found["output_tokens"] == 12


def test_tokens_per_second_pools_tokens_and_time_over_requests_and_streams():
    done = [request(0, tokens=10, end_s=1.0), request(1, tokens=30, end_s=1.0)]
    assert summary(done)["tokens_per_s"]["value"] == pytest.approx(20)
    found = summary(done, concurrency=4)["tokens_per_s"]
    assert found["value"] == pytest.approx(80)
    assert 40 <= found["low"] < found["high"] <= 120


def test_under_a_rate_of_requests_the_clock_runs_from_the_first_request_to_the_last_byte():
    # 10 tokens each; sent at seconds 0, 2 and 4, the last one takes 1 s: 30 tokens in 5 s, idle time counted.
    found = summary([request(i, tokens=10, end_s=1.0, sent_s=2.0 * i) for i in range(3)], rate=0.5)["tokens_per_s"]
    assert found == {"value": pytest.approx(6.0), "low": None, "high": None}


def test_the_servers_count_of_verify_steps_is_kept_with_the_request():
    drafted = request(0)
    drafted.response_metrics = {"speculative_decoding": {"num_spec_steps": 5}}
    steps = {record["id"]: record["verify_steps"] for record in summary([drafted, request(1)])["records"]}
    assert steps == {"p0": 5, "p1": None}


def test_a_reply_of_one_token_has_no_gap():
    found = summary([request(0, tokens=1, chunks=1, last_s=0.05)])
    assert found["itl_ms"] == found["chunk_gap_ms"] == {"mean": None, "p50": None, "p95": None}


def test_prompts_without_a_successful_request_are_failures():
    found = summary([request(0), request(1)], [request(2)])  # the third failed, the fourth was never sent
    assert (found["requests"], found["failures"], found["failure_share"], found["invalid"]) == (4, 2, 0.5, True)
    assert [record["id"] for record in found["records"]] == ["p0", "p1"]
    assert not summary([request(0), request(1)], failure_share_max=0.5)["invalid"]


def test_a_load_without_any_success_is_an_error_with_its_reason():
    broken = request(0)
    broken.info.error = "status 500"
    with pytest.raises(RuntimeError, match="none of 4 requests succeeded: status 500"):
        summary([], [broken])
    with pytest.raises(RuntimeError, match="no request was sent"):
        summary([])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    toy.write_tokenizer(folder)
    return str(folder)


def load(fake, tokenizer, concurrency, prompts=PROMPTS, **settings):
    from harness.evaluation.latency import measure_latency

    settings = Latency(
        benchmark="word_problems", concurrency=concurrency, requests=len(prompts), max_new_tokens=16, **settings
    )
    return measure_latency(fake.url, MODEL, tokenizer, prompts, settings, seed=0, resamples=200)


@pytest.mark.slow
def test_guidellm_times_a_scripted_stream_at_each_concurrency(tokenizer):
    scripted = Scripted(chunks=[["a", "b", "c"]] * 4, first_delay_s=0.05, gap_s=0.03)
    with fake_server(lambda body: Scripted(status=400) if "ignore_eos" in body else scripted) as fake:
        found = load(fake, tokenizer, [1, 2])
    assert found["concurrency"].keys() == {"1", "2"}
    for load_ in found["concurrency"].values():
        assert (load_["requests"], load_["failures"], load_["output_tokens"]) == (4, 0, 48)
        assert load_["ttft_ms"]["p50"] == pytest.approx(50, abs=20)
        assert load_["itl_ms"]["p50"] == pytest.approx(90 / 11, abs=3)
        assert load_["chunk_gap_ms"]["p50"] == pytest.approx(30, abs=10)
        assert [record["id"] for record in load_["records"]] == ["p0", "p1", "p2", "p3"]
        assert load_["machine"].keys() == {"kernel_ms", "others_cpu_share"}
    # Each prompt once at each concurrency, greedy, no forced length.
    assert len(fake.bodies) == 8
    for body in fake.bodies:
        assert (body["temperature"], body["top_p"], body["top_k"], body["seed"]) == (0.0, 1.0, 0, 0)
        assert body["max_completion_tokens"] == 16
        assert "ignore_eos" not in body
    assert [body["messages"] for body in fake.bodies[:4]] == [messages for _, messages in PROMPTS]


@pytest.mark.slow
def test_guidellm_counts_error_events_and_empty_replies_as_failures(tokenizer):
    prompts = [(f"p{i}", [{"role": "user", "content": str(i)}]) for i in range(10)]

    def reply(body):
        number = int(body["messages"][0]["content"])
        return Scripted(error_event=number in (2, 5, 7), chunks=[] if number == 9 else [["a", "b"]])

    with fake_server(reply) as fake:
        found = load(fake, tokenizer, [1], prompts)["concurrency"]["1"]
    assert (found["requests"], found["failures"], found["invalid"]) == (10, 4, True)
    assert {record["id"] for record in found["records"]} == {f"p{i}" for i in (0, 1, 3, 4, 6, 8)}


@pytest.mark.slow
def test_guidellm_sends_at_a_rate_and_waits_out_a_slow_start(tokenizer):
    # 4 requests, one every 0.25 s; each takes 0.6 s to its first token, so that several are under way at once.
    with fake_server(lambda _: Scripted(chunks=[["a"], ["b"]], first_delay_s=0.6, gap_s=0.02)) as fake:
        found = load(fake, tokenizer, [1], rates=[4.0], arrivals="constant")
    at_rate = found["rates"]["4"]
    assert (at_rate["requests"], at_rate["failures"], at_rate["output_tokens"]) == (4, 0, 8)
    assert at_rate["ttft_ms"]["p50"] == pytest.approx(600, abs=60)
    assert 8 / 2.5 < at_rate["tokens_per_s"]["value"] < 8 / 1.3  # 0.75 s between first and last start, and 0.62 s
    assert found["concurrency"]["1"]["tokens_per_s"]["value"] < 8 / 2.4


@pytest.mark.slow
def test_a_server_that_hangs_is_given_up_at_the_outer_limit(tokenizer, monkeypatch):
    monkeypatch.setattr("harness.evaluation.latency.REQUEST_LIMIT_S", 0.5)
    started = time.monotonic()
    with (
        fake_server(lambda _: Scripted(first_delay_s=60.0)) as fake,
        pytest.raises(RuntimeError, match=r"latency at concurrency 2: none of 4 requests succeeded"),
    ):
        load(fake, tokenizer, [2])
    assert time.monotonic() - started < 30


def test_a_turn_with_an_image_is_known_again_among_the_keys_that_the_load_generator_adds():
    parts = [{"type": "image_url", "image_url": {"url": "data:x"}}, {"type": "text", "text": "What?"}]
    keys = {"image_url": None, "text": None}
    sent = request(0)
    sent.request_args = json.dumps({"body": {"messages": [{"role": "user", "content": [keys | p for p in parts]}]}})
    prompts = [("seen", [{"role": "user", "content": parts}])]
    found = summarise([sent], (), prompts, Arrivals(1), 0.01, seed=0, resamples=200)
    assert [record["id"] for record in found["records"]] == ["seen"] and found["failures"] == 0
