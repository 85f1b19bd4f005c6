"""The server's own report, read from a log as vLLM 0.32.0 writes it, and compared with what was meant."""

from dataclasses import replace

import pytest

from harness.errors import UserError
from harness.serving import ServerReport, expect, report
from harness.serving.cpu_support import LOG_PREFIX

ENGINE = (
    "(EngineCore pid=7) INFO 01-01 00:00:00 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
    "model='models/toy', speculative_config={speculation}, tokenizer='models/toy', skip_tokenizer_init=False, "
    "revision=None, trust_remote_code=False, dtype=torch.bfloat16, max_seq_len=1024, tensor_parallel_size=1, "
    "quantization=None, enforce_eager=True, kv_cache_dtype=auto, device_config=cpu, seed=0, "
    "served_model_name=toy, enable_prefix_caching=False, enable_chunked_prefill=False, pooler_config=None\n"
)
RUNNER = "WARNING [vllm.py:725] Model Runner V2 requires Triton; using the V1 model runner instead.\n"
DRAFT = "SpeculativeConfig(method='some_method', model='drafts/mtp-eagle-toy', num_spec_tokens=5)"
NGRAM = "SpeculativeConfig(method='ngram', model=None, num_spec_tokens=3)"

REPORT = ServerReport(
    method="some_method",
    num_speculative_tokens=5,
    verifier="models/toy",
    draft="drafts/mtp-eagle-toy",
    dtype="bfloat16",
    max_model_len=1024,
    startup_s=3.0,
    command=["vllm", "serve"],
    settings={},
)


def read(tmp_path, monkeypatch, text):
    log = tmp_path / "server.log"
    log.write_text(text)
    monkeypatch.setattr(report, "fetch", lambda url: b'{"data": [{"id": "toy", "max_model_len": 1024}]}')
    return report.read_report("http://127.0.0.1:1", log, 3.0, ["vllm", "serve"], {"OMP_NUM_THREADS": "2"})


def test_a_draft_checkpoint_is_reported_with_method_length_and_both_models(tmp_path, monkeypatch):
    found = read(tmp_path, monkeypatch, "banner\n" + RUNNER + ENGINE.format(speculation=DRAFT))
    assert (found.method, found.num_speculative_tokens) == ("some_method", 5)
    assert (found.verifier, found.draft) == ("models/toy", "drafts/mtp-eagle-toy")
    assert (found.dtype, found.max_model_len) == ("bfloat16", 1024)
    assert found.settings["engine"]["model_runner"] == "V1"
    assert found.settings["engine"]["enable_chunked_prefill"] == "False"
    assert found.settings["environment"] == {"OMP_NUM_THREADS": "2"}


def test_what_was_added_to_the_cpu_build_is_reported(tmp_path, monkeypatch):
    line = f"{LOG_PREFIX}one thing; another thing\n"
    found = read(
        tmp_path, monkeypatch, "banner\n" + line + "INFO Using V2 Model Runner\n" + ENGINE.format(speculation=DRAFT)
    )
    assert found.settings["support"] == ["one thing", "another thing"]
    assert found.settings["engine"]["model_runner"] == "V2"


def test_an_engine_as_it_came_reports_no_support(tmp_path, monkeypatch):
    assert read(tmp_path, monkeypatch, ENGINE.format(speculation=DRAFT)).settings["support"] == []


@pytest.mark.parametrize(("speculation", "method", "tokens"), [("None", None, 0), (NGRAM, "ngram", 3)])
def test_servers_without_a_draft_model_are_reported(tmp_path, monkeypatch, speculation, method, tokens):
    found = read(tmp_path, monkeypatch, ENGINE.format(speculation=speculation))
    assert (found.method, found.num_speculative_tokens, found.draft) == (method, tokens, None)


def test_a_log_in_another_form_is_refused(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="no line gives the engine's configuration"):
        read(tmp_path, monkeypatch, "Initializing an engine\n")


def test_what_was_meant_passes():
    expect(REPORT, method="some_method", num_speculative_tokens=5, verifier="models/toy", max_model_len=1024)


def test_a_verifier_folder_may_be_written_in_another_way(tmp_path):
    (tmp_path / "toy").mkdir()
    meant = tmp_path / "other" / ".." / "toy"
    expect(replace(REPORT, verifier=str(tmp_path / "toy")), "some_method", 5, str(meant))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "other"}, "method is 'other', not 'some_method'"),
        ({"method": None, "num_speculative_tokens": 0}, "num_speculative_tokens is 0, not 5"),
        ({"verifier": "models/other"}, "verifier is "),
        ({"max_model_len": 2048}, "max_model_len is 2048, not 1024"),
    ],
)
def test_any_difference_stops_the_run_and_is_named(changes, said):
    with pytest.raises(UserError, match="Fix: ") as caught:
        expect(replace(REPORT, **changes), "some_method", 5, "models/toy", max_model_len=1024)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
