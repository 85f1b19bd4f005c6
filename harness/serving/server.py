"""`running_server`: vLLM's OpenAI server for a verifier folder or a draft checkpoint, for the length of a block.

Called by the measuring commands. The server is vLLM's own, with ordinary arguments; `launch` says how it starts faster.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.progress import log as say
from harness.sections.serve import Serve
from harness.serving.arguments import serve_arguments, served_name
from harness.serving.environment import vllm_environment
from harness.serving.processes import HOST, claim_port, fetch, serving_process
from harness.serving.report import ServerReport, read_report

LAUNCHER = [sys.executable, "-m", "harness.serving.launch", "serve"]


@dataclass(frozen=True)
class Server:
    """A server that is ready. `url` has no trailing slash; `model_name` is what requests say under "model"."""

    url: str
    model_name: str
    report: ServerReport
    process: subprocess.Popen

    def metrics(self) -> str:
        """Prometheus text of /metrics."""
        return fetch(f"{self.url}/metrics").decode()


def _is_local(model: str) -> bool:
    """Whether `model`, and the verifier that a draft checkpoint names, are folders on this machine.

    Raises:
        UserError: `model` looks like a path and is none, or holds no config.json.
    """
    folder = Path(model)
    if not folder.is_dir():
        if model.count("/") == 1 and not model.startswith((".", "/", "models/", "results/")):
            return False
        raise UserError(f"{model}: no such model folder. Fix: run the step that makes it, or correct the path")
    config = folder / "config.json"
    if not config.exists():
        raise UserError(f"{config}: missing. Fix: give a folder in Hugging Face layout")
    verifier = json.loads(config.read_text()).get("speculators_config", {}).get("verifier", {}).get("name_or_path")
    return verifier is None or Path(verifier).is_dir()


def _without_folders(environment: dict[str, str]) -> dict[str, str]:
    """The environment as it may be published: libraries by name, not by where this machine keeps them."""
    return {key: ":".join(Path(part).name for part in value.split(":")) for key, value in environment.items()}


@contextmanager
def running_server(
    model: str,
    serve: Serve,
    log: Path,
    speculative_config: dict[str, Any] | None = None,
    extra_arguments: Sequence[str] = (),
) -> Iterator[Server]:
    """Serve `model` on the loopback interface until the block ends; no process is left behind, however it ends.

    Args:
        model: a verifier folder, a speculators checkpoint folder (vLLM finds the verifier in it), or a hub id.
        serve: settings that are the same for every variant.
        log: receives the server's output.
        speculative_config: drafting that needs no checkpoint; None leaves it to `model`.
        extra_arguments: more arguments of `vllm serve`, laid after ours.

    Raises:
        UserError: no such model, or the configured port is taken.
        ServerFailed: the server ended early or was not ready within `serve.ready_timeout_s`.
    """
    chosen = vllm_environment(local=_is_local(model))
    with claim_port(serve.port) as claim:
        port = claim.getsockname()[1]
        arguments = serve_arguments(model, serve, port, speculative_config, extra_arguments)
        url = f"http://{HOST}:{port}"
        command = [*LAUNCHER, *arguments]
        running = serving_process(command, model, url, log, serve.ready_timeout_s, os.environ | chosen)
        with running as (process, startup_s):
            as_typed = ["vllm", "serve", *arguments]
            report = read_report(url, log, startup_s, as_typed, _without_folders(chosen))
            say(f"{model}: server ready after {startup_s:.0f} s at {url}, drafting: {report.method or 'none'}")
            yield Server(url, served_name(model), report, process)
