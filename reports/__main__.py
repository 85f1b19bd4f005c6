"""`python -m reports`: result files of one run in, results.csv, provenance.json, report.md and report.html out.

`python -m reports publish` keeps them in reports/published/ and renews the README's table; `python -m reports compare`
sets several runs side by side.
"""

import argparse
import sys
from pathlib import Path

from harness.errors import run_command
from harness.files import replacing, write_json
from harness.progress import log
from harness.tables import RECORD, table_record
from reports import html, markdown
from reports.collect import load_run
from reports.compare import compare_main
from reports.gates import MISSED, check_gates
from reports.page import make_page, make_provenance
from reports.publish import publish, renew
from reports.rows import make_rows, write_csv

GATE_EXIT_CODE = 1


def report_main(arguments: list[str]) -> int:
    """Write the report of one run; 1 when a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m reports", description="Report one run from its result files.")
    parser.add_argument("--results", type=Path, required=True, help="folder of the run, results/<target>")
    parser.add_argument(
        "--reproduction", required=True, help="name of the reproduction, for its gates and published figures"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for report.html and report.md")
    given = parser.parse_args(arguments)
    run = load_run(given.results, given.reproduction)
    results, provenance = make_rows(run), make_provenance(run)
    gates = check_gates(run, results)
    page = make_page(run, results, gates, provenance)
    write_csv(given.results / "results.csv", results.rows)
    write_json(given.results / "provenance.json", provenance | {RECORD: table_record(given.results / "results.csv")})
    for name, text in (("report.md", markdown.render(page)), ("report.html", html.render(page))):
        with replacing(given.out / name) as partial:
            partial.write_text(text, encoding="utf-8")
    missed = [gate for gate in gates if gate.verdict == MISSED]
    for gate in missed:
        log(f"gate missed: {gate.variant}, {gate.name} {gate.benchmark}: wanted {gate.wanted}, found {gate.found}")
    log(f"{given.out / 'report.html'}: written; {len(gates) - len(missed)} of {len(gates)} gates met")
    return GATE_EXIT_CODE if missed else 0


def publish_main(arguments: list[str]) -> int:
    """Keep the results of one run in the repository."""
    parser = argparse.ArgumentParser(
        prog="python -m reports publish", description="Keep a run's results in reports/published/."
    )
    parser.add_argument(
        "--results", type=Path, help="folder of the run; without it, pages are made again from the tables"
    )
    results = parser.parse_args(arguments).results
    for path in publish(results) if results else renew():
        log(f"{path}: written")
    return 0


COMMANDS = {"publish": publish_main, "compare": compare_main}


def main() -> int:
    """Choose between the report and the further commands."""
    arguments = sys.argv[1:]
    command = COMMANDS.get(arguments[0]) if arguments else None
    return command(arguments[1:]) if command else report_main(arguments)


if __name__ == "__main__":
    run_command(main)
