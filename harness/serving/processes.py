"""A server process that is ready, or fails, within a limit, and never outlives the block it runs in.

`serving_process` is called by `running_server`; it knows nothing of vLLM, so that tests can give it any command.
"""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import psutil

from harness.errors import UserError

HOST = "127.0.0.1"
HEALTH_PATH = "/health"
POLL_S = 0.1
STOP_GRACE_S = 5.0
TAIL_LINES = 20
# What a library of vLLM's prints at every exit, after the reason for it.
EXIT_NOISE = re.compile(r"nanobind:| - leaked | - \.\.\. skipped|See https://nanobind")

# A proxy named in the environment must never see traffic to this machine's own loopback.
_direct = build_opener(ProxyHandler({}))


class ServerFailed(UserError):
    """The server ended, or was not ready in time; the message holds the last lines of its log."""


def fetch(url: str, timeout_s: float = 10.0) -> bytes:
    """Body of a GET on a server of this machine; `OSError` when it does not answer with success in time."""
    with _direct.open(url, timeout=timeout_s) as reply:
        return reply.read()


def claim_port(port: int | None) -> socket.socket:
    """Hold a port of the loopback interface until the server listens there.

    The socket is bound and never listens; the server may bind the port as well because both say SO_REUSEADDR.

    Args:
        port: the port to hold; None takes any free one.

    Raises:
        UserError: `port` is taken.
    """
    claim = socket.socket()
    claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        claim.bind((HOST, port or 0))
    except OSError as error:
        claim.close()
        why = (error.strerror or "refused").lower()
        raise UserError(
            f"serve.port = {port}: {why} on {HOST}. "
            "Fix: stop what listens there, or leave the port out for any free one"
        ) from None
    return claim


def log_tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last `lines` lines of a log that say something, undecodable bytes replaced."""
    said = [line for line in log.read_text(errors="replace").splitlines() if line and not EXIT_NOISE.match(line)]
    return "\n".join(said[-lines:])


def _living_members(group: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return members


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def stop_group(process: subprocess.Popen, grace_s: float) -> None:
    """End `process` and every process of its group: politely first, by force after `grace_s` seconds."""
    group = process.pid
    _signal_group(group, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while (process.poll() is None or _living_members(group)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    _signal_group(group, signal.SIGKILL)
    process.wait()
    while _living_members(group):
        time.sleep(POLL_S)


def _is_healthy(url: str, timeout_s: float) -> bool:
    try:
        fetch(url + HEALTH_PATH, timeout_s)
    except (OSError, HTTPException):
        return False
    return True


def _wait_until_ready(process: subprocess.Popen, name: str, url: str, log: Path, limit_s: float) -> float:
    started = time.monotonic()
    while (waited_s := time.monotonic() - started) < limit_s:
        if process.poll() is not None:
            raise ServerFailed(
                f"{name}: the server ended with code {process.returncode} after {waited_s:.0f} s. "
                f"Fix: see {log}; it ends with:\n{log_tail(log)}"
            )
        if _is_healthy(url, timeout_s=min(1.0, limit_s - waited_s)):
            return time.monotonic() - started
        time.sleep(POLL_S)
    raise ServerFailed(
        f"{name}: the server was not ready within serve.ready_timeout_s = {limit_s:g}. "
        f"Fix: raise it, or see {log}; it ends with:\n{log_tail(log)}"
    )


@contextmanager
def serving_process(
    command: Sequence[str], name: str, url: str, log: Path, ready_timeout_s: float, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen, float]]:
    """Run `command` in a process group of its own until the block ends, however it ends.

    A parent that is killed outright cannot clean up: for that case the command calls `die_with_parent` itself. Enter
    the block in a thread that lives as long as the block does.

    Args:
        command: program and arguments.
        name: what the server serves, for messages.
        url: base address; `/health` there answers with success once the server is ready.
        log: receives stdout and stderr.
        environment: the whole environment of the server.

    Yields:
        The process, and the seconds until it was ready.

    Raises:
        ServerFailed: it ended before it was ready, or was not ready within `ready_timeout_s`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        startup_s = _wait_until_ready(process, name, url, log, ready_timeout_s)
        try:
            yield process, startup_s
        except Exception as error:
            if process.poll() is not None:
                ended = f"{name}: the server had ended with code {process.returncode}"
                error.add_note(f"{ended}; {log} ends with:\n{log_tail(log)}")
            raise
    finally:
        stop_group(process, STOP_GRACE_S)
