"""The environment of vLLM's processes, and the restart that puts a command into it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from harness.serving import environment
from harness.serving.environment import REENTERED, ensure_environment, preloads, vllm_environment

ROOT = Path(__file__).parents[3]
RESTARTED = """
import json, os, sys
from harness.serving import ensure_environment
ensure_environment()
print(json.dumps([os.environ["LD_PRELOAD"], os.environ["HF_HUB_OFFLINE"], sys.argv[1:], os.getpid()]))
"""


def test_all_cores_this_process_may_use_work_for_the_engine(monkeypatch):
    monkeypatch.setattr(environment, "is_cpu_build", lambda: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 2, 3})
    assert vllm_environment()["VLLM_CPU_OMP_THREADS_BIND"] == "2,3,5"
    assert vllm_environment()["OMP_NUM_THREADS"] == "3"


def test_a_local_model_asks_no_hub_and_nothing_phones_home(monkeypatch):
    for cpu in (True, False):
        monkeypatch.setattr(environment, "is_cpu_build", lambda cpu=cpu: cpu)
        assert vllm_environment(local=True)["HF_HUB_OFFLINE"] == "1"
        assert "HF_HUB_OFFLINE" not in vllm_environment(local=False)
        assert vllm_environment()["VLLM_NO_USAGE_STATS"] == "1"


def test_the_cuda_build_keeps_its_own_threads_and_libraries(monkeypatch):
    monkeypatch.setattr(environment, "is_cpu_build", lambda: False)
    assert not {"LD_PRELOAD", "OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND"} & set(vllm_environment())


def test_preloaded_libraries_load_into_a_new_process():
    libraries = preloads()
    done = subprocess.run(
        [sys.executable, "-c", "print(open('/proc/self/maps').read())"],
        env=os.environ | {"LD_PRELOAD": ":".join(libraries)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert libraries
    assert all(Path(library).name in done.stdout for library in libraries)


def test_libraries_are_preloaded_from_a_folder_with_a_space_in_its_name(tmp_path, monkeypatch):
    library = tmp_path / "my project" / Path(preloads()[0]).name
    library.parent.mkdir()
    library.symlink_to(preloads()[0])
    monkeypatch.setattr(environment, "preloads", lambda: [str(library)])
    done = subprocess.run(
        [sys.executable, "-c", "print(open('/proc/self/maps').read())"],
        env=os.environ | environment._loader_variables(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "" and library.name in done.stdout


def test_a_command_restarts_itself_once_with_its_arguments_and_its_process_id():
    started = subprocess.Popen(
        [sys.executable, "-c", RESTARTED, "--out", "a b"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    out, _ = started.communicate(timeout=60)
    assert json.loads(out) == [":".join(preloads()), "1", ["--out", "a b"], started.pid]


def test_a_command_that_was_restarted_goes_on(monkeypatch):
    monkeypatch.setenv(REENTERED, "1")
    restarts = []
    monkeypatch.setattr(os, "execve", lambda *arguments: restarts.append(arguments))
    ensure_environment()
    assert restarts == []
