"""`running_server`: faults of the user before anything starts, and a real vLLM on a toy verifier (slow)."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest

from harness.errors import UserError, run_command
from harness.sections.serve import Ngram, Serve
from harness.serving import ServerFailed, expect, ngram_config, running_server

ROOT = Path(__file__).parents[3]
SERVE = Serve(dtype="float32", max_model_len=128, max_num_seqs=2, kv_cache_gb=0.1, ready_timeout_s=150.0)
KILLED = """
import sys, time
from pathlib import Path
from harness.sections.serve import Serve
from harness.serving import running_server
serve = Serve(dtype="float32", max_model_len=128, max_num_seqs=2, kv_cache_gb=0.1)
with running_server(sys.argv[1], serve, Path(sys.argv[2])) as server:
    print(server.process.pid, flush=True)
    time.sleep(600)
"""


def start(model, log, **changes):
    with running_server(str(model), SERVE.model_copy(update=changes), log):
        pass


@pytest.mark.parametrize("missing", ["models/no_such_model", "/no/such/model", "./drafts"])
def test_a_model_folder_that_is_not_there_is_named_before_anything_starts(tmp_path, missing):
    with pytest.raises(UserError, match=f"{missing}: no such model folder. Fix: "):
        start(missing, tmp_path / "server.log")
    assert not (tmp_path / "server.log").exists()


def test_a_folder_without_a_config_is_named(tmp_path):
    with pytest.raises(UserError, match=r"config\.json: missing. Fix: "):
        start(tmp_path, tmp_path / "server.log")


def test_an_occupied_port_is_one_line_and_exit_code_2(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    with socket.socket() as taken, pytest.raises(SystemExit) as ended:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run_command(lambda: start(tmp_path, tmp_path / "server.log", port=port))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: serve.port = {port}: address already in use")
    assert "Fix: " in said
    assert said.count("\n") == 1


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    from tests.toy import write_verifier

    return write_verifier(tmp_path_factory.mktemp("models") / "toy_eagle-mtp")


def ask(server, **more):
    body = {"model": server.model_name, "prompt": [65, 66, 67, 65, 66, 67, 65, 66], "max_tokens": 16, **more}
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{server.url}/v1/completions", json.dumps(body).encode(), headers), timeout=60) as reply:
        return json.load(reply)


def same_group(process):
    found = []
    for other in psutil.process_iter():
        try:
            if os.getpgid(other.pid) == process and other.status() != psutil.STATUS_ZOMBIE:
                found.append(other.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


@pytest.mark.slow
def test_vllm_serves_a_verifier_reports_itself_and_leaves_nothing_behind(tmp_path, verifier):
    (verifier / "generation_config.json").write_text(json.dumps({"do_sample": True, "temperature": 1.9, "top_k": 40}))
    with running_server(str(verifier), SERVE, tmp_path / "server.log") as server:
        expect(server.report, None, 0, str(verifier), max_model_len=128)
        assert server.report.dtype == "float32"
        greedy = ask(server, temperature=0)["choices"][0]["text"]
        assert greedy == ask(server, temperature=0)["choices"][0]["text"]
        assert "vllm:num_requests_running" in server.metrics()
        assert len(same_group(server.process.pid)) == 2
        group = server.process.pid
    assert same_group(group) == []
    assert "sampling parameters have been overridden" not in (tmp_path / "server.log").read_text()


@pytest.mark.slow
def test_vllm_drafts_by_prompt_lookup_and_reports_every_step(tmp_path, verifier):
    ngram = ngram_config(Ngram(speculative_tokens=3, lookup_min=1))
    with running_server(str(verifier), SERVE, tmp_path / "server.log", speculative_config=ngram) as server:
        expect(server.report, "ngram", 3, str(verifier))
        spec = ask(server, temperature=0)["metrics"]["speculative_decoding"]
        assert sum(spec["per_step_drafted"]) > 0
        assert "vllm:spec_decode_num_draft_tokens_total{" in server.metrics()


@pytest.mark.slow
def test_vllm_does_not_outlive_a_killed_parent(tmp_path, verifier):
    parent = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(verifier), str(tmp_path / "server.log")], cwd=ROOT, stdout=subprocess.PIPE
    )
    group = int(parent.stdout.readline())
    assert len(same_group(group)) == 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while same_group(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert same_group(group) == []


@pytest.mark.slow
def test_a_verifier_that_vllm_cannot_load_fails_with_its_exit_code(tmp_path, verifier):
    broken = tmp_path / "broken"
    broken.mkdir()
    config = json.loads((verifier / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"architectures": ["NoSuchModel"]}))
    with pytest.raises(ServerFailed, match="ended with code 1"):
        start(broken, tmp_path / "server.log")
