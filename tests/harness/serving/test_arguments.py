"""What vLLM is told: equal settings for every variant, greedy defaults, whole prompts."""

import json

import pytest

from harness.sections.serve import Ngram, Serve
from harness.serving import arguments, ngram_config
from harness.serving.arguments import serve_arguments

SERVE = Serve(max_model_len=4096, max_num_seqs=8, kv_cache_gb=0.5)


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(arguments, "is_cpu_build", lambda: True)


@pytest.fixture
def on_cuda(monkeypatch):
    monkeypatch.setattr(arguments, "is_cpu_build", lambda: False)


def option(given, name):
    return given[given.index(name) + 1]


def test_the_models_own_sampling_defaults_never_apply(on_cpu):
    assert option(serve_arguments("models/toy", SERVE, 8000), "--generation-config") == "vllm"


@pytest.mark.parametrize("gpus", [1, 4])
def test_a_large_verifier_is_spread_over_gpus_and_a_small_one_is_not(on_cuda, gpus):
    given = serve_arguments("models/toy", SERVE.model_copy(update={"tensor_parallel_size": gpus}), 8000)
    assert ("--tensor-parallel-size" in given) == (gpus > 1)
    assert gpus == 1 or option(given, "--tensor-parallel-size") == "4"


def test_a_prompt_of_any_length_stays_whole(on_cpu):
    given = serve_arguments("models/toy", SERVE, 8000)
    assert "--no-enable-chunked-prefill" in given
    assert int(option(given, "--max-num-batched-tokens")) >= 4096


def test_the_server_binds_to_loopback_on_the_given_port_under_the_folders_name(on_cpu):
    given = serve_arguments("models/toy", SERVE, 8123)
    assert given[0] == "models/toy"
    assert [option(given, name) for name in ("--host", "--port", "--served-model-name")] == ["127.0.0.1", "8123", "toy"]


def test_variants_differ_in_the_drafting_and_in_nothing_else(on_cpu):
    plain = serve_arguments("models/toy", SERVE, 8000)
    ngram = serve_arguments("models/toy", SERVE, 8000, ngram_config(Ngram(speculative_tokens=3)))
    assert option(ngram, "--per-request-spec-decode-metrics") == "detailed"
    drafting = [name for name in ngram if name in ("--speculative-config", "--per-request-spec-decode-metrics")]
    assert [value for value in ngram if value not in [*drafting, *(option(ngram, name) for name in drafting)]] == plain
    assert json.loads(option(ngram, "--speculative-config")) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }


def test_the_cpu_build_compiles_nothing_and_gets_a_bounded_cache(on_cpu):
    given = serve_arguments("models/toy", SERVE, 8000)
    assert "--enforce-eager" in given
    assert option(given, "--kv-cache-memory-bytes") == str(2**29)


def test_the_cuda_build_keeps_its_graphs_and_its_own_cache_size(on_cuda):
    given = serve_arguments("models/toy", SERVE, 8000)
    assert "--enforce-eager" not in given
    assert "--kv-cache-memory-bytes" not in given


def test_extra_arguments_come_last_so_that_they_win(on_cpu):
    assert serve_arguments("models/toy", SERVE, 8000, None, ["--seed", "7"])[-2:] == ["--seed", "7"]
