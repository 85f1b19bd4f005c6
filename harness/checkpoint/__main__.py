"""`python -m harness.checkpoint lint|convert`: find every trap in a draft's files; take over other projects' drafts.

Exit 0 clean, 1 faults, 2 bad.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.checkpoint.convert import command as conversion
from harness.checkpoint.findings import Finding, Subject
from harness.checkpoint.lint import accepting, algorithm_of, lint
from harness.checkpoint.reading import open_checkpoint
from harness.checkpoint.verifier_facts import read_facts
from harness.errors import UserError, run_command
from harness.files import write_json

COLOURS = {"fault": "bold red", "note": "cyan"}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m harness.checkpoint", description="Draft checkpoints in the speculators format."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("lint", help="look for every trap that shows in the files")
    command.add_argument("draft", type=Path, metavar="DIR", help="folder of the draft")
    command.add_argument("--verifier", type=Path, metavar="DIR", help="folder of its verifier, to compare with")
    command.add_argument(
        "--accept", action="append", default=[], metavar="RULE", help="take this rule's faults as intended; repeatable"
    )
    command.add_argument("--out", type=Path, metavar="FILE", help="write what every rule says as JSON")
    conversion.add_arguments(commands.add_parser("convert", help=conversion.HELP))
    return parser.parse_args()


def _table(title: str, findings: list[Finding]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("rule", "verdict"):
        table.add_column(heading, no_wrap=True)
    for heading in ("found", "fix"):
        table.add_column(heading, overflow="fold")
    for f in findings:
        if f.verdict in COLOURS:
            told = f"{f.found} ({f.symptom})" if f.verdict == "fault" else f.found
            table.add_row(f.rule, f"[{COLOURS[f.verdict]}]{f.verdict}[/]", escape(told), escape(f.fix))
    waiting = sorted({(f.fix, f.rule) for f in findings if f.verdict == "not checked"})
    if waiting:
        table.caption = f"not checked ({waiting[0][0]}): {', '.join(rule for _, rule in waiting)}"
    return table


def _check_accepted(accepted: list[str], findings: list[Finding]) -> None:
    rules = {f.rule for f in findings}
    for name in accepted:
        if name not in rules:
            raise UserError(f"--accept {name}: no such rule. Fix: use one of {', '.join(sorted(rules))}")


def main() -> int:
    """Run one of the commands."""
    given = _parse()
    return conversion.run(given) if given.command == "convert" else _lint(given)


def _lint(given: argparse.Namespace) -> int:
    config, tensors = open_checkpoint(given.draft)
    facts = read_facts(given.verifier) if given.verifier else None
    files = sorted(path.name for path in given.draft.iterdir())
    findings = lint(Subject(config, tensors, algorithm_of(config), files, facts))
    _check_accepted(given.accept, findings)
    findings = accepting(findings, given.accept)
    faults = sum(f.verdict == "fault" for f in findings)
    if given.out:
        about = {"draft": str(given.draft), "verifier": str(given.verifier) if given.verifier else None}
        write_json(given.out, about | {"faults": faults, "rules": [asdict(f) for f in findings]})
    title = f"{given.draft}: {len({f.rule for f in findings})} rules, {faults} faults"
    Console().print(_table(title, findings))
    return 1 if faults else 0


if __name__ == "__main__":
    run_command(main)
