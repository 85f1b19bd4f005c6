"""`python -m reports.gate RESULTS --baseline FILE`: did this run get worse than the committed baseline?

Exit code 0: nothing got worse. 1: a regression. 2: cannot judge (other verifier, prompts, draft tokens or scale;
figures that are absent or invalid; no provenance). `python -m reports.gate accept` writes a new baseline with a reason.
Called by harness/rules/gate.smk and by CI; docs/gate.md explains the verdicts.
"""

import argparse
import sys
from pathlib import Path

from harness.errors import USER_ERROR_EXIT_CODE, UserError, run_command
from harness.progress import log
from harness.recipes import REPRODUCTIONS
from reports.baseline import accept, read_baseline, snapshot
from reports.collect import Run, load_run, read_json
from reports.gate_floors import floors
from reports.gate_output import SAID, as_junit, as_markdown, line
from reports.gate_verdicts import CANNOT, PASS, REGRESSION, Tolerances, judge, outcome
from reports.places import check_place, write_text
from reports.rows import make_rows

EXIT_CODES = {PASS: 0, REGRESSION: 1, CANNOT: USER_ERROR_EXIT_CODE}


def reproduction_of(results: Path) -> str:
    """Name of the reproduction that a results folder is of, by its settings.

    Raises:
        UserError: it is a file, or the folder says it nowhere.
    """
    if results.is_file():
        raise UserError(f"RESULTS = {results}: a file, not a folder. Fix: give the results folder of a run")
    for name, key in (("settings.json", "name"), ("provenance.json", "reproduction")):
        if (results / name).exists():
            return str(read_json(results / name).get(key))
    raise UserError(f"{results}/settings.json: no such file. Fix: give the results folder of a run, results/<target>")


def read_run(results: Path, reproductions: Path) -> Run:
    """The run in a results folder."""
    return load_run(results, reproduction_of(results), reproductions)


def _tolerances(given: argparse.Namespace) -> Tolerances:
    usual = vars(Tolerances())
    wanted: dict[str, float] = {name: getattr(given, f"tolerance_{name}") for name in usual}
    for name, value in wanted.items():
        if not 0 <= value < 1:  # so it is for NaN, with which nothing would be a loss
            raise UserError(
                f"--tolerance-{name} = {value:g}: no share. Fix: use a share from 0 to below 1, e.g. {usual[name]:g}"
            )
    return Tolerances(**wanted)


def gate_main(arguments: list[str]) -> int:
    """Judge one run; 0, 1 or 2."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.gate",
        description="Judge a run against its baseline. Exit code 0: pass, 1: regression, 2: cannot judge.",
    )
    _add_places(parser)
    parser.add_argument("--markdown", type=Path, help="write the verdicts as a Markdown page")
    parser.add_argument("--junit", type=Path, help="write the verdicts as JUnit XML")
    for name, value in vars(Tolerances()).items():
        parser.add_argument(
            f"--tolerance-{name}", type=float, default=value,
            help="relative loss that is none, however sure (default: %(default)s)",
        )  # fmt: skip
    given = parser.parse_args(arguments)
    tolerances = _tolerances(given)
    check_place("--markdown", given.markdown)
    check_place("--junit", given.junit)
    baseline, run = read_baseline(given.baseline), read_run(given.results, given.reproductions)
    verdicts = judge(baseline.run, snapshot(run), tolerances)
    if all(each.variant != "run" for each in verdicts):
        verdicts += floors(run, make_rows(run))
    target = given.results.name
    write_text(given.markdown, as_markdown(verdicts, target, baseline.accepted))
    write_text(given.junit, as_junit(verdicts, target))
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
    check_place("--baseline", given.baseline)
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
