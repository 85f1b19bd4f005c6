"""The long result table: one row per variant, metric and benchmark, each with its provenance; results.csv holds it.

Built from a `Run`; tables, gates and the summary look values up in it and compute nothing of their own.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

from harness.errors import UserError
from harness.evaluation.statistics import paired_difference, pooled_ratio, proportion
from harness.files import replacing
from harness.sections.evaluate import Evaluate
from harness.serving.baselines import asked_for, missing
from harness.tables import AGAIN, read_table
from reports import wording
from reports.collect import BASE, NOT_IN_REPRODUCTION, Run
from reports.formats import Benchmark, Load, Provenance, Score
from reports.pairs import against, drift, pairs

BASELINES = (BASE, "ngram", "suffix")
LATENCY_FIELDS = ("ttft_ms", "itl_ms", "request_s")
STAND_IN = "interpreter"  # in what `harness.serving.cpu_support` says of itself
REPLY_KINDS = ("thinking_only", "empty", "cut", "failed")


@dataclass(frozen=True)
class Row:
    """One figure, a line of results.csv. Without a `value`, `note` says `not run: ...` or `invalid: ...`.

    Beside a value it says `not comparable: ...`, or nothing.
    """

    reproduction: str
    variant: str
    metric: str
    benchmark: str
    value: float | None
    low: float | None
    high: float | None
    n: int | None
    unit: str
    scale: str
    commit: str
    settings_sha256: str
    dirty: str
    seed: str
    machine: str
    versions: str
    finished_at: str
    note: str

    @property
    def base(self) -> str:
        """The metric without what its name carries at the end."""
        return wording.base_name(self.metric)


@dataclass(frozen=True)
class Figure:
    """A row before its provenance is added."""

    metric: str
    benchmark: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    note: str = ""


def machine(provenance: Provenance) -> str:
    """`2 cores of Intel Xeon, 23 GiB memory, no GPU`."""
    hardware = provenance.hardware
    gpus = " + ".join(hardware.gpus) or "no GPU"
    return f"{hardware.cores} cores of {hardware.cpu}, {hardware.memory_gib:.0f} GiB memory, {gpus}"


def share_left_open(n: int) -> float:
    """The largest share of faults that `n` cases without one leave possible: the upper end of Wilson's interval."""
    return proportion(0, n).high


class Results:
    """The rows, with look-up by variant, metric and benchmark."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self._by_key = {(row.variant, row.metric, row.benchmark): row for row in rows}

    def get(self, variant: str, metric: str, benchmark: str = "") -> Row | None:
        """The row, or None where the metric does not exist for that variant."""
        return self._by_key.get((variant, metric, benchmark))

    def value(self, variant: str, metric: str, benchmark: str = "") -> float | None:
        """The value, or None where it does not exist or was not run."""
        row = self.get(variant, metric, benchmark)
        return row.value if row else None

    def measured(self, metric: str) -> list[str]:
        """Benchmarks on which some variant has a value of the metric, in order of appearance; no categories."""
        found = [row.benchmark for row in self.rows if row.metric == metric and row.value is not None]
        return list(dict.fromkeys(benchmark for benchmark in found if "/" not in benchmark))

    def categories(self, metric: str) -> list[str]:
        """Parts of benchmarks, `word_problems/give`, on which some variant has a value of the metric."""
        found = [row.benchmark for row in self.rows if row.metric == metric and row.value is not None]
        return list(dict.fromkeys(benchmark for benchmark in found if "/" in benchmark))

    def not_run(self) -> list[Row]:
        """Rows without a value."""
        return [row for row in self.rows if row.value is None]


def make_rows(run: Run) -> Results:
    """Every figure of the run as a row."""
    rows: list[Row] = []
    for variant in run.reproduction.variants:
        for source, figures in _figures(run, variant):
            rows += [_row(run, variant, figure, run.provenance[source]) for figure in figures]
    for source, extra in run.extras.items():
        for found in extra.figures:
            variant = found.variant or PurePosixPath(source).stem
            figure = Figure(**found.model_dump(exclude={"variant"}))
            rows.append(_row(run, variant, figure, run.provenance[source]))
    for variant, figure in _drafts_in_pairs(run):
        rows.append(_row(run, variant, figure, run.provenance[f"measured/{variant}/latency.json"]))
    anchor = run.provenance[f"measured/{BASE}/acceptance.json"]
    rows += [_row(run, variant, figure, anchor) for variant, figure in _absent_baselines(run)]
    return Results(rows)


def _absent_baselines(run: Run) -> Iterator[tuple[str, Figure]]:
    """Each baseline that was not served, with the reason."""
    asked = asked_for(run.reproduction.baselines)
    for variant in BASELINES:
        if variant not in run.reproduction.variants:
            why = (missing(variant) if variant in asked else None) or NOT_IN_REPRODUCTION
            yield variant, Figure("acceptance_length", note=f"not run: {why}")


def _row(run: Run, variant: str, figure: Figure, provenance: Provenance) -> Row:
    versions = "; ".join(f"{package} {version}" for package, version in provenance.versions.items())
    return Row(
        reproduction=run.reproduction.name, variant=variant, metric=figure.metric, benchmark=figure.benchmark,
        value=figure.value, low=figure.low, high=figure.high, n=figure.n,
        unit=wording.unit(figure.metric), scale=run.scale,
        commit=provenance.commit or "", settings_sha256=provenance.settings_sha256,
        dirty={True: "yes", False: "no", None: "unknown"}[provenance.dirty],
        seed="" if provenance.seed is None else str(provenance.seed),
        machine=machine(provenance), versions=versions, finished_at=provenance.finished_at, note=figure.note,
    )  # fmt: skip


def _figures(run: Run, variant: str) -> Iterator[tuple[str, list[Figure]]]:
    """Each result file of a variant with the figures it gives."""
    measured = f"measured/{variant}"
    yield f"{measured}/acceptance.json", list(_acceptance(run, variant))
    yield f"{measured}/accuracy.json", list(_accuracy(run, variant))
    yield f"{measured}/latency.json", list(_latency(run, variant))
    if variant in run.match:
        yield f"match/{variant}.json", list(_match(run, variant))
    if variant in run.parity:
        yield f"parity/{variant}.json", list(_parity(run, variant))
    if variant in run.training:
        yield f"training/{variant}/summary.json", list(_training(run, variant))


def _acceptance(run: Run, variant: str) -> Iterator[Figure]:
    if variant not in run.drafted:
        return
    for name, benchmark in run.acceptance[variant].benchmarks.items():
        if benchmark.acceptance_length_pooled is None:
            yield Figure("acceptance_length", name, n=benchmark.drafts, note="not run: nothing was drafted")
            continue
        yield from _drafted(run, variant, name, benchmark)
    for source in run.sources.sources:
        if source.split == "heldout" and source.not_run:
            yield Figure("acceptance_length", source.source, note=f"not run: {source.not_run}")


def _drafted(run: Run, variant: str, name: str, benchmark: Benchmark) -> Iterator[Figure]:
    length, steps = benchmark.acceptance_length_pooled, benchmark.drafts
    yield Figure("acceptance_length", name, length, benchmark.low, benchmark.high, steps)
    for kind, found in benchmark.categories.items():
        where, value = f"{name}/{kind}", found.acceptance_length_pooled
        yield Figure("acceptance_length", where, value, found.low, found.high, found.drafts)
    if mean := benchmark.mean_of_prompts:
        value = mean.acceptance_length_mean_of_prompts
        yield Figure("acceptance_length_mean_of_prompts", name, value, mean.low, mean.high, mean.prompts)
    if benchmark.emitted_tokens_per_step is not None:
        emitted, low, high = benchmark.emitted_tokens_per_step, benchmark.emitted_low, benchmark.emitted_high
        yield Figure("emitted_tokens_per_step", name, emitted, low, high, benchmark.steps)
    if benchmark.drafted_step_share is not None:
        yield Figure("drafted_step_share", name, benchmark.drafted_step_share, n=benchmark.steps)
    if benchmark.accepted_past_end is not None:
        yield Figure("accepted_past_end", name, benchmark.accepted_past_end, n=steps)
    replies = run.steps[variant].get(name, [])
    for position, rate in enumerate(benchmark.acceptance_rate_per_position):
        low, high = _position_interval(replies, position, run.reproduction.evaluate)
        yield Figure(f"acceptance_rate_position_{position + 1}", name, rate, low, high, steps)


def _position_interval(
    replies: list[list[int]], position: int, evaluate: Evaluate
) -> tuple[float | None, float | None]:
    """Bootstrap interval over replies, each given as accepted tokens per verify step; None without any step."""
    drafts = [len(accepted) for accepted in replies]
    if not sum(drafts):
        return None, None
    hits = [sum(count > position for count in accepted) for accepted in replies]
    found = pooled_ratio(hits, drafts, evaluate.bootstrap_resamples, evaluate.seed)
    return found.low, found.high


def _score_note(score: Score) -> str:
    if score.not_run:
        return f"not run: {score.not_run}"
    silent = score.empty + score.thinking_only
    return f"invalid: {score.failed} failed and {silent} empty of {score.n} replies" if score.invalid else ""


def _accuracy(run: Run, variant: str) -> Iterator[Figure]:
    for task, score in run.accuracy[variant].tasks.items():
        note = _score_note(score)
        if not score.not_run:
            for kind in REPLY_KINDS:
                yield Figure(f"replies_{kind}", task, getattr(score, kind), n=score.n)
        for kind in ("strict", "flexible"):
            if note:
                yield Figure(f"accuracy_{kind}", task, n=score.n, note=note)
                continue
            low, high = getattr(score, f"{kind}_low"), getattr(score, f"{kind}_high")
            yield Figure(f"accuracy_{kind}", task, getattr(score, kind), low, high, score.n)
            if variant != BASE:
                yield _accuracy_difference(run, variant, task, kind)


def _accuracy_difference(run: Run, variant: str, task: str, kind: str) -> Figure:
    same_verifier, metric = run.reproduction.base_of(variant), f"accuracy_{kind}_difference"
    # A draft is compared on its own verifier, the quantised verifier with the original.
    base = run.accuracy[BASE if same_verifier == variant else same_verifier].tasks.get(
        task, Score(not_run="the base has no such task")
    )
    if note := _score_note(base):
        return Figure(metric, task, note=f"not run: base {note}")
    before = {str(problem.id): getattr(problem, kind) for problem in base.per_problem}
    after = {str(problem.id): getattr(problem, kind) for problem in run.accuracy[variant].tasks[task].per_problem}
    if not before.keys() & after.keys():
        return Figure(metric, task, note="not run: base and variant have no problem in common")
    difference = paired_difference(before, after)
    return Figure(metric, task, difference.value, difference.low, difference.high, difference.n)


def _latency(run: Run, variant: str) -> Iterator[Figure]:
    benchmark, file = run.reproduction.evaluate.latency.benchmark, run.latency[variant]
    loads = {f"c{level}": load for level, load in file.concurrency.items()}
    for place, load in (loads | {f"r{rate}": load for rate, load in file.rates.items()}).items():
        yield Figure(f"failure_share_{place}", benchmark, load.failure_share, n=load.requests)
        rate = load.tokens_per_s
        if load.invalid:
            note = f"invalid: {load.failures} of {load.requests} requests failed"
            yield Figure(f"tokens_per_s_{place}", benchmark, n=load.requests, note=note)
            continue
        note = _not_comparable(speed_doubts(run, variant, load))
        yield Figure(f"tokens_per_s_{place}", benchmark, rate.value, rate.low, rate.high, load.requests, note)
        yield from _latency_percentiles(load, place, benchmark, note)
        base = run.latency[BASE].concurrency.get(place.removeprefix("c"))
        if variant != BASE and base is not None:
            yield from _speedup(run, variant, base, load, place, benchmark)
    if file.checks_s is not None:
        yield Figure("checks_seconds", "", file.checks_s)


def _latency_percentiles(load: Load, place: str, benchmark: str, doubt: str) -> Iterator[Figure]:
    for name in (*LATENCY_FIELDS, *(["chunk_gap_ms"] if load.chunk_gap_ms else [])):
        for percentile in ("p50", "p95"):
            value = getattr(getattr(load, name), percentile)
            note = doubt if value is not None else "not run: no request gave it"
            yield Figure(f"{name}_{percentile}_{place}", benchmark, value, n=load.requests, note=note)
    done = load.requests - load.failures
    yield Figure(f"output_tokens_per_request_{place}", benchmark, load.output_tokens / done, n=done)
    if load.machine is not None:
        yield Figure(f"others_cpu_share_{place}", benchmark, load.machine.others_cpu_share)


def speed_doubts(run: Run, variant: str, load: Load) -> list[str]:
    """Why a speed of this variant may not be compared with others; nothing for a sound figure."""
    doubts = []
    if any(STAND_IN in said for said in run.servers[variant].settings.support):
        doubts.append("the CPU build has no Triton, so other code stands in for this draft's kernels")
    most = run.reproduction.evaluate.latency.others_cpu_share_max
    if load.machine is not None and load.machine.others_cpu_share > most:
        doubts.append(f"other programs took {load.machine.others_cpu_share:.0%} of the cores meanwhile")
    return doubts


def _not_comparable(doubts: list[str]) -> str:
    return f"not comparable: {'; '.join(doubts)}" if doubts else ""


def _speedup(run: Run, variant: str, base: Load, load: Load, place: str, benchmark: str) -> Iterator[Figure]:
    metric, latency = f"speedup_{place}", run.reproduction.evaluate.latency
    if base.invalid:
        yield Figure(metric, benchmark, note="not run: the base's own figure is invalid")
        return
    ratio, drifted = against(base, load, run.reproduction.evaluate), drift(base, load)
    if ratio is None:
        yield Figure(metric, benchmark, note="not run: base and variant have no request in common")
        return
    doubts = list(dict.fromkeys([*speed_doubts(run, variant, load), *speed_doubts(run, BASE, base)]))
    if drifted is not None:
        yield Figure(f"machine_drift_{place}", benchmark, drifted)
        if max(drifted, 1 / drifted) - 1 > latency.machine_drift_max:
            doubts.append(f"a fixed piece of work took {drifted:.2f} times as long as beside the base")
    yield Figure(metric, benchmark, ratio.value, ratio.low, ratio.high, ratio.n, _not_comparable(doubts))


def _drafts_in_pairs(run: Run) -> Iterator[tuple[str, Figure]]:
    """The direct ratio of every two variants whose speeds may be compared, as a figure of the faster one."""
    latency = run.reproduction.evaluate.latency
    for pair in pairs(run):
        doubts = [
            doubt
            for variant in (pair.faster, pair.slower)
            for doubt in speed_doubts(run, variant, run.latency[variant].concurrency[pair.level])
        ]
        drifted = pair.drift or 1.0
        if not doubts and max(drifted, 1 / drifted) - 1 <= latency.machine_drift_max:
            where, ratio = f"{latency.benchmark}/over {pair.slower}", pair.ratio
            metric = f"draft_speed_ratio_c{pair.level}"
            yield pair.faster, Figure(metric, where, ratio.value, ratio.low, ratio.high, ratio.n)


def _match(run: Run, variant: str) -> Iterator[Figure]:
    match = run.match[variant]
    benign = sum(difference.verdict == "benign" for difference in match.differences)
    yield Figure("output_match_exact", "", match.exact_share, match.low, match.high, match.total)
    yield Figure("output_match_benign", "", benign, n=match.total)
    yield Figure("output_match_faults", "", match.faults, n=match.total)
    if match.rounding is not None:
        yield Figure("margin_change_largest", "", match.rounding.largest_nats, n=match.rounding.tokens)
    for source, share in match.sources.items():
        yield Figure("output_match_exact", source, share.exact_share, share.low, share.high, share.total)
    if match.start is not None:
        start, note = match.start, f"not run: {match.start.not_run}" if match.start.not_run else ""
        yield Figure("output_match_start", "", start.exact_share, start.low, start.high, start.total, note)


def _parity(run: Run, variant: str) -> Iterator[Figure]:
    for name, parity in run.parity[variant].benchmarks.items():
        yield Figure("parity_gap", name, parity.gap, parity.low, parity.high)
        for side in ("predicted", "served"):
            for position, rate in enumerate(getattr(parity, f"{side}_per_position")):
                yield Figure(f"parity_{side}_rate_{position + 1}", name, rate)


def _training(run: Run, variant: str) -> Iterator[Figure]:
    summary = run.training[variant]
    yield Figure("training_seconds", "", summary.seconds, n=summary.steps)
    if run.provenance[f"training/{variant}/summary.json"].hardware.gpus:
        yield Figure("training_gpu_hours", "", summary.processes * summary.seconds / 3600, n=summary.steps)
    yield Figure("training_tokens", "", summary.tokens, n=summary.steps)
    yield Figure("training_peak_memory_bytes", "", summary.peak_memory_bytes)
    yield Figure("draft_parameters", "", summary.draft_parameters)


def write_csv(path: Path, rows: list[Row]) -> None:
    """Write the long table, whole or not at all; numbers with 6 significant digits, absent ones empty."""
    columns = [field.name for field in fields(Row)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = (getattr(row, column) for column in columns)
        writer.writerow([format(value, ".6g") if isinstance(value, float) else value for value in values])
    with replacing(path) as partial:
        partial.write_text(text.getvalue(), encoding="utf-8")


def read_csv(path: Path) -> list[Row]:
    """The rows of a file that `write_csv` wrote.

    Raises:
        UserError: it is missing, damaged, or no results table; one line names the file and where.
    """
    numbers, rows = {"value": float, "low": float, "high": float, "n": int}, []
    for number, line in enumerate(read_table(path), 1):
        try:
            values = {key: (read(line[key]) if line[key] else None) for key, read in numbers.items()}
            rows.append(Row(**line | values))
        except (TypeError, ValueError, KeyError):
            raise UserError(f"{path}: row {number}: damaged, or of another version. Fix: {AGAIN}") from None
    return rows
