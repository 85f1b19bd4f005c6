"""What the Snakefile needs beside the rules: the interpreter of the steps, and what to tell a person.

Called by `harness/rules/common.smk` and the Snakefile's `onerror` and `onsuccess`.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from harness.errors import UserError

TARGETS = ("reproduce_", "plan_", "gate", "share_", "nightly")
TAIL_LINES = 15
TAIL_BYTES = 16_384
# How Snakemake 9 writes a failed job in its own log.
FAILED_RULE = re.compile(r"^Error in rule (\w+):\n(?:    .*\n)*?    log: (.+?) \(check log file", re.MULTILINE)


def own_python_first() -> None:
    """Make `python` in a rule the interpreter that runs Snakemake, whether its environment was activated or not."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def failed_steps(snakemake_log: str) -> dict[str, str]:
    """Log file to rule name of every failed job that the text of a Snakemake log names."""
    return {log: rule for rule, log in FAILED_RULE.findall(snakemake_log)}


def tail(path: Path) -> list[str]:
    """The last lines of a log, whatever bytes it holds; none where there is no such file."""
    if not path.exists():
        return []
    with path.open("rb") as source:
        source.seek(0, os.SEEK_END)
        source.seek(max(0, source.tell() - TAIL_BYTES))
        text = source.read().decode(errors="replace")
    return [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()][-TAIL_LINES:]


def _targets(arguments: Sequence[str]) -> list[str]:
    return [word.removeprefix("reproduce_") for word in arguments if word.startswith("reproduce_")]


def reports_of(arguments: Sequence[str]) -> list[str]:
    """A line for the report of every target that the command line names, where there is one."""
    reports = [Path("results", target, "report", "report.html") for target in _targets(arguments)]
    return [f"report: {report}" for report in reports if report.exists()]


def _gate_pages(arguments: Sequence[str]) -> list[str]:
    """A line for the verdicts of every gate that the command line names, where they were written."""
    named = [Path("results", word.removeprefix("gate_")) for word in arguments if word.startswith("gate_")]
    found = [place / "gate" / "gate.md" for place in (named or Path("results").glob("*"))]
    return [f"verdicts: {page}" for page in found if page.exists()]


def _again(arguments: Sequence[str]) -> str:
    return shlex.join(["snakemake", *arguments[1:]])


def asked_targets(arguments: Sequence[str]) -> list[str]:
    """The targets of a Snakemake command line, read as Snakemake reads it."""
    from snakemake.cli import get_argument_parser

    return list(get_argument_parser().parse_known_args(arguments[1:])[0].targets)


def check_targets(wanted: Iterable[str], rules: Iterable[str]) -> None:
    """Raises `UserError` for a name that no rule has, with the targets that there are; of paths Snakemake says more."""
    names = list(rules)
    for name in wanted:
        if "/" in name or name in names or Path(name).exists():
            continue
        targets = [rule for kind in TARGETS for rule in names if rule.startswith(kind)]
        near = get_close_matches(name, targets, n=1)
        fix = f"use {near[0]}" if near else "use one of these"
        listed = "".join(f"\n  {rule}" for rule in targets)
        raise UserError(f"{name}: no such target. Fix: {fix}; the targets are:{listed}")


def advice_on_failure(snakemake_logs: Sequence[str], arguments: Sequence[str]) -> str:
    """Text for the terminal: every failed step with its last lines, and how to go on.

    Args:
        snakemake_logs: Snakemake's own log files of the run.
        arguments: the command line that started it.
    """
    failed = failed_steps("\n".join(Path(log).read_text(errors="replace") for log in snakemake_logs))
    lines = []
    for log, rule in failed.items():
        lines += ["", f"step {rule} failed; the end of {log}:", *(f"  | {line}" for line in tail(Path(log)))]
    if "report" in failed.values():  # it is written before its gates are looked at
        lines += reports_of(arguments)
    if "judge" in failed.values():
        lines += _gate_pages(arguments)
    lines += ["", "What to do: mend what the last lines say, then run the same command. Finished steps are kept:"]
    return "\n".join([*lines, f"  {_again(arguments)}"])
