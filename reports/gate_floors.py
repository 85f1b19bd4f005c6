"""Floors that a run must reach whatever its baseline says: those of its recipe, and those of published tests.

Called by `python -m reports.gate`. An entry of `published.yaml` of quality `test_threshold` is what its source's own
test demands of a draft of that algorithm: at least the value, or a share of it that its conditions name. One whose
benchmark or number of draft tokens is not this run's is not compared.
"""

import re
from collections.abc import Iterator

from reports.collect import Run
from reports.formats import Published
from reports.gate_verdicts import CANNOT, PASS, REGRESSION, SKIPPED, Verdict
from reports.gates import MET, check_gates
from reports.rows import Results, Row

ABSENT = ("not run", "invalid")
PER_POSITION = "acceptance_rate_per_position"
AT_LEAST = re.compile(r"measured >= (?:(?P<share>[\d.]+) \* )?(?:value|mean)")


def floors(run: Run, results: Results) -> list[Verdict]:
    """A verdict for every floor; one on a figure that is absent or invalid cannot be judged."""
    return [*_recipe(run, results), *_published(run, results)]


def _recipe(run: Run, results: Results) -> Iterator[Verdict]:
    for gate in check_gates(run, results):
        verdict = PASS if gate.verdict == MET else CANNOT if gate.found.startswith(ABSENT) else REGRESSION
        told = f"recipe wants {gate.wanted}, found {gate.found}" + (f" ({gate.interval})" if gate.interval else "")
        yield Verdict(gate.variant, f"floor: {gate.name}", gate.benchmark, verdict, note=told)


def _published(run: Run, results: Results) -> Iterator[Verdict]:
    """Only a full run is held against the tests of others: they were written for drafts of full size."""
    for entry in run.published if run.scale == "full" else []:
        share = published_share(entry)
        if share is None or entry.algorithm not in run.reproduction.variants:
            continue
        if entry.k not in (None, run.acceptance[entry.algorithm].num_speculative_tokens) or entry.temperature:
            continue
        values = entry.value if isinstance(entry.value, list) else [entry.value]
        for at, value in enumerate(values, 1):
            metric = f"acceptance_rate_position_{at}" if entry.metric == PER_POSITION else entry.metric
            row = results.get(entry.algorithm, metric, entry.benchmark)
            yield _floor(entry, metric, share * float(value), row)


def published_share(entry: Published) -> float | None:
    """The share of its value that a published test demands; None where the entry is no such test."""
    if entry.quality != "test_threshold" or not isinstance(entry.conditions, dict):
        return None
    if (tolerance := entry.conditions.get("relative_tolerance")) is not None:
        return 1 - float(tolerance)
    rule = AT_LEAST.fullmatch(str(entry.conditions.get("rule") or entry.conditions.get("pass_rule")))
    return float(rule["share"] or 1) if rule else None


def _floor(entry: Published, metric: str, least: float, row: Row | None) -> Verdict:
    name, wanted = f"floor: {metric}", f"{entry.source} wants at least {least:g}"
    if row is None or row.value is None:
        told = row.note if row else "not measured here"
        return Verdict(entry.algorithm, name, entry.benchmark, SKIPPED, note=f"{wanted}; {told}")
    verdict = PASS if row.value >= least else REGRESSION
    return Verdict(entry.algorithm, name, entry.benchmark, verdict, note=f"{wanted}, found {row.value:.3f}")
