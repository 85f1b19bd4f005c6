"""`python -m reports.gate RESULTS --baseline FILE`: did this run get worse than the committed baseline?

Exit code 0: nothing got worse. 1: a regression. 2: cannot judge (other verifier, prompts, draft tokens or scale;
figures that are absent or invalid; no provenance). `python -m reports.gate accept` writes a new baseline with a reason.
Called by harness/rules/gate.smk and by CI; docs/gate.md explains the verdicts.
"""

import argparse
import sys
from pathlib import Path

from harness.errors import USER_ERROR_EXIT_CODE, UserError, run_command
from harness.files import replacing
from harness.progress import log
from harness.recipes import REPRODUCTIONS
from reports.baseline import accept, read_baseline, snapshot
from reports.collect import Run, load_run, read_json
from reports.gate_floors import floors
from reports.gate_output import SAID, as_junit, as_markdown, line
from reports.gate_verdicts import CANNOT, PASS, REGRESSION, Tolerances, judge, outcome
from reports.rows import make_rows

EXIT_CODES = {PASS: 0, REGRESSION: 1, CANNOT: USER_ERROR_EXIT_CODE}


def reproduction_of(results: Path) -> str:
    """Name of the reproduction that a results folder is of, by its settings.

    Raises:
        UserError: the folder says it nowhere.
    """
    for name, key in (("settings.json", "name"), ("provenance.json", "reproduction")):
        if (results / name).exists():
            return str(read_json(results / name).get(key))
    raise UserError(f"{results}/settings.json: no such file. Fix: give the results folder of a run, results/<target>")


def read_run(results: Path, reproductions: Path) -> Run:
    """The run in a results folder."""
    return load_run(results, reproduction_of(results), reproductions)


def gate_main(arguments: list[str]) -> int:
    """Judge one run; 0, 1 or 2."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.gate",
        description="Judge a run against its baseline. Exit code 0: pass, 1: regression, 2: cannot judge.",
    )
    _add_places(parser)
    parser.add_argument("--markdown", type=Path, help="write the verdicts as a Markdown page")
    parser.add_argument("--junit", type=Path, help="write the verdicts as JUnit XML")
    usual = Tolerances()
    for name, value in vars(usual).items():
        parser.add_argument(
            f"--tolerance-{name}", type=float, default=value,
            help="relative loss that is none, however sure (default: %(default)s)",
        )  # fmt: skip
    given = parser.parse_args(arguments)
    tolerances = Tolerances(**{name: getattr(given, f"tolerance_{name}") for name in vars(usual)})
    baseline, run = read_baseline(given.baseline), read_run(given.results, given.reproductions)
    verdicts = judge(baseline.run, snapshot(run), tolerances)
    if all(each.variant != "run" for each in verdicts):
        verdicts += floors(run, make_rows(run))
    target = given.results.name
    pages = {given.markdown: as_markdown(verdicts, target, baseline.accepted), given.junit: as_junit(verdicts, target)}
    for path, text in pages.items():
        if path is not None:
            with replacing(path) as partial:
                partial.write_text(text, encoding="utf-8")
    for each in verdicts:
        if each.verdict in (REGRESSION, CANNOT):
            print(line(each))
    found = outcome(verdicts)
    print(f"gate of {target}: {SAID[found]} ({len(verdicts)} verdicts)")
    return EXIT_CODES[found]


def accept_main(arguments: list[str]) -> int:
    """Write a new baseline."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.gate accept", description="Take a run as the new baseline; the old figures are kept."
    )
    _add_places(parser)
    parser.add_argument("--reason", required=True, help="why the figures may change; the baseline's history keeps it")
    given = parser.parse_args(arguments)
    baseline = accept(snapshot(read_run(given.results, given.reproductions)), given.baseline, given.reason)
    log(f"{given.baseline}: written, commit {baseline.accepted.commit[:12]}, {len(baseline.history)} earlier")
    return 0


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, metavar="RESULTS", help="folder of the run, results/<target>")
    parser.add_argument("--baseline", type=Path, required=True, help="reports/published/<target>.baseline.json")
    parser.add_argument(
        "--reproductions", type=Path, default=REPRODUCTIONS, help="folder of the recipes (default: %(default)s)"
    )


def main() -> int:
    """Choose between the verdicts and `accept`."""
    arguments = sys.argv[1:]
    return accept_main(arguments[1:]) if arguments[:1] == ["accept"] else gate_main(arguments)


if __name__ == "__main__":
    run_command(main)
