"""Look for every trap that shows in a draft's files, and with --verifier in how it fits its verifier.

Exit code 0: nothing wrong; 1: some rule found a fault; 2: it cannot be judged (no such draft, damaged, no network), or
the command was given wrongly.
"""

import argparse
import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.checkpoint.examine import examine
from harness.checkpoint.findings import Finding
from harness.checkpoint.lint import accepting, lint
from harness.checkpoint.verifier_facts import read_facts
from harness.errors import UserError
from harness.files import write_json

HELP = "look for every trap that shows in the files"
COLOURS = {"fault": "bold red", "note": "cyan"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of `lint`."""
    parser.add_argument("draft", metavar="DRAFT", help="folder of the draft, or its hub id")
    parser.add_argument("--verifier", type=Path, metavar="DIR", help="folder of its verifier, to compare with")
    parser.add_argument(
        "--deep", action="store_true", help="serve it with vLLM in float32 and compare with the reference loop"
    )
    parser.add_argument(
        "--accept", action="append", default=[], metavar="RULE", help="take this rule's faults as intended; repeatable"
    )
    parser.add_argument("--all-values", action="store_true", help="look at every value of a large draft too")
    parser.add_argument("--json", action="store_true", help="print what every rule says as JSON")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write what every rule says as JSON")


def table(title: str, findings: list[Finding]) -> Table:
    """What the rules say, those with nothing to say left out."""
    made = Table(title=title, title_justify="left")
    for heading in ("rule", "verdict"):
        made.add_column(heading, no_wrap=True)
    for heading in ("found", "fix"):
        made.add_column(heading, overflow="fold")
    for f in findings:
        if f.verdict in COLOURS:
            told = f"{f.found} ({f.symptom})" if f.verdict == "fault" else f.found
            made.add_row(f.rule, f"[{COLOURS[f.verdict]}]{f.verdict}[/]", escape(told), escape(f.fix))
    waiting = sorted({(f.fix, f.rule) for f in findings if f.verdict == "not checked"})
    if waiting:
        made.caption = f"not checked ({waiting[0][0]}): {', '.join(rule for _, rule in waiting)}"
    return made


def _check_accepted(accepted: list[str], findings: list[Finding]) -> None:
    rules = {f.rule for f in findings}
    for name in accepted:
        if name not in rules:
            raise UserError(f"--accept {name}: no such rule. Fix: use one of {', '.join(sorted(rules))}")


def _findings(given: argparse.Namespace) -> list[Finding]:
    facts = read_facts(given.verifier) if given.verifier else None
    subject = examine(given.draft, facts, given.all_values)
    findings = lint(subject)
    _check_accepted(given.accept, findings)
    findings = accepting(findings, given.accept)
    if not given.deep:
        return findings
    if any(f.verdict == "fault" for f in findings):
        return [*findings, Finding("served-drafts", "not checked", "", "", "mend the faults first")]
    # By name: to the DAG's lint, the code that serves and measures is no part of it.
    return [*findings, *import_module("harness.checkpoint.deep").served(given.draft, subject.config, given.verifier)]


def run(given: argparse.Namespace) -> int:
    """Lint one draft."""
    findings = _findings(given)
    faults = sum(f.verdict == "fault" for f in findings)
    about = {"draft": given.draft, "verifier": str(given.verifier) if given.verifier else None}
    content: dict[str, Any] = about | {"faults": faults, "rules": [asdict(f) for f in findings]}
    if given.out:
        write_json(given.out, content)
    if given.json:
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        Console().print(table(f"{given.draft}: {len({f.rule for f in findings})} rules, {faults} faults", findings))
    return 1 if faults else 0
