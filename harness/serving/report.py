"""What a running server itself says of its set-up, and the comparison with what we meant.

Made by `running_server`; the measuring command calls `expect` before the first request.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.serving.cpu_support import LOG_PREFIX
from harness.serving.processes import fetch

# vLLM prints its resolved configuration once, when the engine starts.
ENGINE_LINE = re.compile(r"Initializing a V1 LLM engine \(v(?P<version>\S+)\) with config: (?P<config>.*)")
SPECULATION = re.compile(
    r"SpeculativeConfig\(method='(?P<method>\w+)', model=(?P<draft>None|'[^']*'), num_spec_tokens=(?P<tokens>\d+)\)"
)
RUNNER_LINE = re.compile(r"using the (V\d) model runner|Using (V\d) Model Runner")
SUPPORT_LINE = re.compile(rf"^{re.escape(LOG_PREFIX)}(.+)$", re.MULTILINE)
BACKEND_LINE = re.compile(r"Using (\S+) (?:attention )?backend\b")


@dataclass(frozen=True)
class ServerReport:
    """The server's own report. `method` is None and `num_speculative_tokens` 0 without speculation."""

    method: str | None
    num_speculative_tokens: int
    verifier: str
    draft: str | None
    dtype: str
    max_model_len: int
    startup_s: float
    command: list[str]
    settings: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The report as JSON-able data, for server.json."""
        return asdict(self)


def _value(config: str, key: str, log: Path) -> str:
    found = re.search(rf"(?:^|, ){key}=(?:'([^']*)'|([^,]*))", config)
    if found is None:
        raise RuntimeError(f"{log}: the engine's configuration names no {key}: this vLLM writes it in another form")
    return found[1] if found[1] is not None else found[2]


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return next(group for group in found.groups() if group) if found else None


def _told_by_log(log: Path) -> dict[str, Any]:
    text = log.read_text(errors="replace")
    line = ENGINE_LINE.search(text)
    if line is None:
        raise RuntimeError(f"{log}: no line gives the engine's configuration: this vLLM writes it in another form")
    config = line["config"]
    speculation = SPECULATION.search(config)
    return {
        "method": speculation["method"] if speculation else None,
        "num_speculative_tokens": int(speculation["tokens"]) if speculation else 0,
        "draft": speculation["draft"].strip("'") if speculation and speculation["draft"] != "None" else None,
        "verifier": _value(config, "model", log),
        "dtype": _value(config, "dtype", log).removeprefix("torch."),
        "support": [said for said in (_first(SUPPORT_LINE, text) or "").split("; ") if said],
        "engine": {
            "version": line["version"],
            "device": _value(config, "device_config", log),
            "seed": _value(config, "seed", log),
            "enable_prefix_caching": _value(config, "enable_prefix_caching", log),
            "enable_chunked_prefill": _value(config, "enable_chunked_prefill", log),
            "enforce_eager": _value(config, "enforce_eager", log),
            "model_runner": _first(RUNNER_LINE, text),
            "attention_backend": _first(BACKEND_LINE, text),
        },
    }


def read_report(url: str, log: Path, startup_s: float, command: list[str], environment: dict[str, str]) -> ServerReport:
    """The report of a server that is ready, from its log and its list of models.

    Raises:
        RuntimeError: the log is not in the form of vLLM 0.32.
    """
    told = _told_by_log(log)
    offered = json.loads(fetch(f"{url}/v1/models"))["data"][0]
    settings = {"engine": told.pop("engine"), "support": told.pop("support"), "environment": environment}
    return ServerReport(
        max_model_len=offered["max_model_len"],
        startup_s=round(startup_s, 2),
        command=command,
        settings=settings,
        **told,
    )


def expect(
    report: ServerReport,
    method: str | None,
    num_speculative_tokens: int,
    verifier: str,
    max_model_len: int | None = None,
) -> None:
    """Compare a server's report with what was meant.

    Args:
        method: the drafting method, None for no speculation.
        num_speculative_tokens: tokens drafted per verify step, 0 for no speculation.
        verifier: folder or hub id; folders are compared by where they lead.

    Raises:
        UserError: one line with every difference.
    """
    pairs = {
        "method": (report.method, method),
        "num_speculative_tokens": (report.num_speculative_tokens, num_speculative_tokens),
        "verifier": (str(Path(report.verifier).resolve()), str(Path(verifier).resolve())),
        "max_model_len": (report.max_model_len, report.max_model_len if max_model_len is None else max_model_len),
    }
    wrong = [f"{name} is {found!r}, not {meant!r}" for name, (found, meant) in pairs.items() if found != meant]
    if wrong:
        raise UserError(f"the running server: {'; '.join(wrong)}. Fix: lint the checkpoint; it says what vLLM reads")
