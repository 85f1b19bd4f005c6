"""The server's life cycle, played with a fake server: start, limits, and what is left afterwards."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from harness.serving import processes
from harness.serving.processes import HOST, ServerFailed, claim_port, log_tail, serving_process, stop_group

FAKE = Path(__file__).with_name("fake_server.py")
ROOT = Path(__file__).parents[3]

HOLDER = """
import os, sys, time
from pathlib import Path
from harness.serving.processes import claim_port, serving_process
with claim_port(None) as claim:
    port = claim.getsockname()[1]
    command = [sys.executable, sys.argv[1], str(port), *sys.argv[3:]]
    url = f"http://127.0.0.1:{port}"
    with serving_process(command, "fake", url, Path(sys.argv[2]), 20.0, dict(os.environ)) as (process, _):
        print(process.pid, flush=True)
        time.sleep(600)
"""


def serve(log, *options, limit_s=20.0):
    with claim_port(None) as claim:
        port = claim.getsockname()[1]
    command = [sys.executable, str(FAKE), str(port), *options]
    return serving_process(command, "fake", f"http://{HOST}:{port}", log, limit_s, dict(os.environ))


def members(group):
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def wait_until_empty(group, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return members(group)


@pytest.fixture(autouse=True)
def stopped(monkeypatch):
    """Process groups that were stopped, with little patience."""
    groups = []

    def stop(process, grace_s):
        groups.append(process.pid)
        stop_group(process, grace_s)

    monkeypatch.setattr(processes, "STOP_GRACE_S", 0.5)
    monkeypatch.setattr(processes, "stop_group", stop)
    return groups


def test_a_server_that_is_slow_to_start_is_waited_for_and_stopped_afterwards(tmp_path):
    with serve(tmp_path / "logs/server.log", "ready_after_s=1") as (process, startup_s):
        assert process.poll() is None
        assert 1.0 <= startup_s < 10.0
        group = process.pid
    assert members(group) == []
    assert "fake server starts" in (tmp_path / "logs/server.log").read_text()


def test_a_server_that_ends_is_noticed_within_two_seconds_with_its_code_and_the_end_of_its_log(tmp_path):
    started = time.monotonic()
    with (
        pytest.raises(ServerFailed, match=r"ended with code 3 (.|\n)*server\.log(.|\n)*fake server starts"),
        serve(tmp_path / "server.log", "ready_after_s=30", "exit_after_s=1"),
    ):
        pass
    assert time.monotonic() - started < 1 + 2 + 2  # its life, the limit, two starts of Python on a busy machine


def test_waiting_stops_at_the_limit_and_the_server_with_it(tmp_path, stopped):
    started = time.monotonic()
    with (
        pytest.raises(ServerFailed, match=r"not ready within serve\.ready_timeout_s = 1"),
        serve(tmp_path / "server.log", "ready_after_s=30", "child=1", limit_s=1.0),
    ):
        pass
    assert time.monotonic() - started < 1 + 2 + 2
    assert members(stopped[0]) == []


@pytest.mark.parametrize("options", [("ignore_term=1",), ("child=1",), ("ignore_term=1", "child=1")])
def test_a_whole_group_ends_even_if_its_members_ignore_a_polite_request(tmp_path, options):
    with serve(tmp_path / "server.log", *options) as (process, _):
        group = process.pid
        assert len(members(group)) == (2 if "child=1" in options else 1)
    assert members(group) == []


def test_an_exception_in_the_block_stops_the_server_and_passes_through(tmp_path):
    with pytest.raises(ZeroDivisionError), serve(tmp_path / "server.log") as (process, _):
        group = process.pid
        raise ZeroDivisionError
    assert members(group) == []


def test_an_exception_after_the_server_died_tells_so(tmp_path):
    with pytest.raises(ConnectionError) as caught, serve(tmp_path / "server.log", "exit_after_s=1") as (process, _):
        process.wait(10)
        raise ConnectionError
    assert "the server had ended with code 3" in caught.value.__notes__[0]


@contextmanager
def held_by_another_process(log, *options):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(FAKE), str(log), *options], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        yield holder, int(holder.stdout.readline())
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_server_outlives_its_parent_however_the_parent_ends(tmp_path, number):
    with held_by_another_process(tmp_path / "server.log") as (holder, group):
        assert members(group) == [group]
        holder.send_signal(number)
        holder.wait(10)
        assert wait_until_empty(group) == []


def test_ctrl_c_also_ends_what_the_server_started(tmp_path):
    with held_by_another_process(tmp_path / "server.log", "child=1") as (holder, group):
        assert len(members(group)) == 2
        holder.send_signal(signal.SIGINT)
        holder.wait(15)
        assert members(group) == []


def test_other_processes_are_left_alone(tmp_path):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with serve(tmp_path / "server.log"):
            pass
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_free_port_is_held_until_the_server_listens_on_it():
    with claim_port(None) as claim, socket.socket() as server:
        port = claim.getsockname()[1]
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HOST, port))
        server.listen()
        with socket.create_connection((HOST, port), timeout=1):
            assert port >= 1024


def test_the_tail_of_a_log_survives_bytes_that_are_no_text(tmp_path):
    log = tmp_path / "server.log"
    log.write_bytes(b"one\n\xff\xfe two\nthree\n")
    assert log_tail(log, 2).split("\n")[-1] == "three"
    assert "two" in log_tail(log, 2)
    assert "one" not in log_tail(log, 2)


def test_the_tail_of_a_log_ends_with_the_reason_not_with_what_every_exit_prints(tmp_path):
    log = tmp_path / "server.log"
    noise = 'nanobind: leaked 3 types!\n - leaked type "a.B"\n - ... skipped remainder\nSee https://nanobind.readthedocs.io\n'
    log.write_text("start\nValueError: no such model\n" + noise)
    assert log_tail(log, 1) == "ValueError: no such model"
