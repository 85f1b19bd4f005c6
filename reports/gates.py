"""The reproduction's gates against the measured rows: a verdict and a reason for each.

`python -m reports` exits with 1 when one is missed; a gate whose metric was not run or is invalid is missed too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from reports.collect import Run
from reports.rows import Results, Row
from reports.wording import described, spread, written

MET, MISSED = "met", "missed"
NOT_FAILED = "not failed"
POINT = "as a point estimate"


@dataclass(frozen=True)
class Gate:
    """One gate: what was wanted, what was found (`interval` may be empty), `met` or `missed`.

    `said` is the verdict in words where `met` would say too much.
    """

    variant: str
    name: str
    benchmark: str
    wanted: str
    found: str
    interval: str
    verdict: str
    said: str = ""


def check_gates(run: Run, results: Results) -> list[Gate]:
    """Every gate of the reproduction with its verdict."""
    return [
        *_accuracy(run, results),
        *_accuracy_min(run, results),
        *_match(run, results),
        *_match_min(run, results),
        *_acceptance(run, results),
        *_speedup(run, results),
        *_parity(run, results),
        *_lossless(run, results),
    ]


def _gate(variant: str, metric: str, benchmark: str, wanted: str, row: Row | None, passed: bool) -> Gate:
    """A gate on one row; without a value it is missed, whatever `passed` says. A doubt about the value is shown."""
    name = described(metric).label
    if metric.startswith("speedup_c"):
        name += f" at concurrency {metric.removeprefix('speedup_c')}"
    if row is None or row.value is None:
        return Gate(variant, name, benchmark, wanted, row.note if row else "not run: no such measurement", "", MISSED)
    found, interval = written(metric, row.value), spread(metric, row.low, row.high)
    if row.note:
        found = f"{found}, {row.note}"
    return Gate(variant, name, benchmark, wanted, found, interval, MET if passed else MISSED)


def _accuracy(run: Run, results: Results) -> Iterator[Gate]:
    limit, kind = run.reproduction.gates.accuracy_drop_max, run.reproduction.gates.accuracy_extraction
    metric = f"accuracy_{kind}_difference"
    wanted = f"at most {100 * limit:g} points lost, and zero or a gain inside the interval"
    for variant in run.drafted:
        for task, score in run.accuracy[variant].tasks.items():
            if score.not_run:
                continue
            row = results.get(variant, metric, task) or results.get(variant, f"accuracy_{kind}", task)
            passed = row is not None and row.value is not None and row.value >= -limit and row.high >= 0
            yield _gate(variant, metric, task, wanted, row, passed)


def _accuracy_min(run: Run, results: Results) -> Iterator[Gate]:
    metric = f"accuracy_{run.reproduction.gates.accuracy_extraction}"
    for task, least in run.reproduction.gates.accuracy_min.items():
        for variant in run.drafted:
            row = results.get(variant, metric, task)
            passed = row is not None and row.value is not None and row.value >= least
            yield _gate(variant, metric, task, f"at least {100 * least:g}%", row, passed)


def _match_min(run: Run, results: Results) -> Iterator[Gate]:
    least = run.reproduction.gates.output_match_exact_min
    metric = "output_match_start" if run.reproduction.evaluate.output_match else "output_match_exact"
    for variant in run.drafted if least is not None else []:
        row = results.get(variant, metric)
        passed = row is not None and row.value is not None and row.value >= least
        yield _gate(variant, metric, "", f"at least {100 * least:g}%", row, passed)


def _match(run: Run, results: Results) -> Iterator[Gate]:
    limit = run.reproduction.gates.output_match_faults_max
    for variant in run.drafted:
        row = results.get(variant, "output_match_faults")
        yield _gate(variant, "output_match_faults", "", f"at most {limit}", row, row is not None and row.value <= limit)


def _acceptance(run: Run, results: Results) -> Iterator[Gate]:
    for variant, benchmarks in run.reproduction.gates.acceptance_length_min.items():
        for benchmark, least in benchmarks.items():
            row = results.get(variant, "acceptance_length", benchmark)
            passed = row is not None and row.value is not None and row.value >= least
            yield _gate(variant, "acceptance_length", benchmark, f"at least {least:g} {POINT}", row, passed)


def _speedup(run: Run, results: Results) -> Iterator[Gate]:
    benchmark = run.reproduction.evaluate.latency.benchmark
    for variant, least in run.reproduction.gates.speedup_c1_min.items():
        row = results.get(variant, "speedup_c1", benchmark)
        passed = row is not None and row.value is not None and row.value >= least
        yield _gate(variant, "speedup_c1", benchmark, f"at least {least:g}× {POINT}", row, passed)


def _parity(run: Run, results: Results) -> Iterator[Gate]:
    for variant, parity in run.parity.items():
        for benchmark, found in parity.benchmarks.items():
            row = results.get(variant, "parity_gap", benchmark)
            beyond = f"more than {found.margin:g} from zero" if found.margin else "on one side of zero"
            passed = found.within and parity.diagnosis is None
            wanted = f"fails when the whole interval lies {beyond}, or when served far below validation"
            gate = _gate(variant, "parity_gap", benchmark, wanted, row, passed)
            yield replace(gate, said=NOT_FAILED) if passed and found.reaches_out else gate


def _lossless(run: Run, results: Results) -> Iterator[Gate]:
    rate = run.reproduction.evaluate.sampling.false_alarm_rate
    for variant in run.drafted:
        row = results.get(variant, "sampling_p")
        if row is not None:
            passed = row.value is not None and row.value >= rate
            yield _gate(variant, "sampling_p", "", f"at least {rate:g}", row, passed)
