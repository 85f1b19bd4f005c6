"""The tables of results. Called by `reports.page`; what tells where results come from is in `reports.origins`."""

from collections.abc import Sequence
from dataclasses import replace

from reports.advice import compared_lengths
from reports.beside import all_beside, all_elsewhere, stated, theirs_written
from reports.cells import DASH, Cell, Table, figure, interval, name, numbers, plain, texts
from reports.collect import BASE, Run
from reports.gates import MET, Gate
from reports.names import benchmark_label, listed, variant_label
from reports.rows import LATENCY_FIELDS, Results, Row
from reports.wording import count, described, duration, parse, place, written

PER_STEP = "emitted_tokens_per_step"


def _levels(run: Run) -> list[str]:
    return sorted(run.latency[BASE].concurrency, key=int)


def _tasks(run: Run) -> list[str]:
    return [task for task, score in run.accuracy[BASE].tasks.items() if not score.not_run]


def leaderboard(run: Run, results: Results, marks: dict[str, str]) -> Table:
    """One row per variant, everything that decides between them; `marks` go below names."""
    speed_at = run.reproduction.evaluate.latency.benchmark
    lengths, tasks, levels = results.measured("acceptance_length"), _tasks(run), _levels(run)
    columns = texts("Variant")
    columns += numbers(*(f"{level} at once" for level in levels), group="Tokens per second, speed-up")
    columns += numbers(*map(benchmark_label, lengths), group="Acceptance length")
    columns += numbers("exact", "faults", group="Output match")
    columns += numbers(*map(benchmark_label, tasks), group="Accuracy") + numbers("Parity gap", "Training")
    table = Table("leaderboard", "All variants side by side", columns)
    for variant in run.reproduction.variants:
        cells = [name(variant, marks.get(variant, ""))]
        cells += [_speed(results, variant, level, speed_at) for level in levels]
        cells += [_length(results, variant, item) for item in lengths]
        cells += [figure(results.get(variant, "output_match_exact")), _faults(results, variant)]
        cells += [_accuracy(results, variant, task) for task in tasks]
        table.rows.append([*cells, _worst_parity(run, results, variant), _cost(results, variant)])
    return table


def _speed(results: Results, variant: str, level: str, benchmark: str) -> Cell:
    cell = figure(results.get(variant, f"tokens_per_s_c{level}", benchmark))
    ratio = results.get(variant, f"speedup_c{level}", benchmark)
    if ratio is None or ratio.value is None:
        return cell
    return replace(cell, sub=f"{written(ratio.metric, ratio.value)} ({interval(ratio)})", doubt=figure(ratio).doubt)


def _length(results: Results, variant: str, benchmark: str) -> Cell:
    """The acceptance length; where some steps drafted nothing it is another thing than that of the other variants."""
    cell = figure(results.get(variant, "acceptance_length", benchmark))
    share, emitted = (results.value(variant, each, benchmark) for each in ("drafted_step_share", PER_STEP))
    if share is None or share == 1 or emitted is None:
        return cell
    return replace(cell, doubt=f"not comparable: {written(PER_STEP, emitted)} emitted")


def _faults(results: Results, variant: str) -> Cell:
    row = results.get(variant, "output_match_faults")
    if row is None:
        return figure(None)
    ties = results.value(variant, "output_match_benign") or 0
    return Cell(written(row.metric, row.value), f"{ties:.0f} near ties", row.value, "missed" if row.value else "met")


def _accuracy(results: Results, variant: str, task: str) -> Cell:
    cell = figure(results.get(variant, "accuracy_flexible", task))
    change = results.get(variant, "accuracy_flexible_difference", task)
    if change is None or change.value is None:
        return cell
    return Cell(cell.text, f"{written(change.metric, change.value)} ({interval(change)})", cell.sort)


def _worst_parity(run: Run, results: Results, variant: str) -> Cell:
    rows = [results.get(variant, "parity_gap", item) for item in results.measured("parity_gap")]
    rows = [row for row in rows if row and row.value is not None]
    if not rows:
        return figure(None)
    worst = max(rows, key=lambda row: abs(row.value))
    told = run.parity[variant].benchmarks[worst.benchmark].told
    if not all(parity.within for parity in run.parity[variant].benchmarks.values()):
        told = "beyond"
    return Cell(written("parity_gap", worst.value), told, abs(worst.value), "missed" if told == "beyond" else "met")


def _cost(results: Results, variant: str) -> Cell:
    seconds = results.value(variant, "training_seconds")
    if seconds is None:
        return figure(None)
    return Cell(duration(seconds), f"{count(results.value(variant, 'training_tokens') or 0)} tokens", seconds)


def gates(found: Sequence[Gate]) -> Table:
    """The verdict on every gate."""
    table = Table("gates", "Gates", texts("Verdict", "Variant", "Metric", "Benchmark", "Wanted", "Found"))
    for gate in sorted(found, key=lambda gate: gate.verdict == MET):
        where = Cell(benchmark_label(gate.benchmark) or DASH)
        cells = [
            Cell(gate.said or gate.verdict, tone=gate.verdict),
            name(gate.variant),
            Cell(gate.name),
            where,
            Cell(gate.wanted),
        ]
        table.rows.append([*cells, Cell(gate.found, gate.interval)])
    return table


def acceptance(run: Run, results: Results) -> Table:
    """Acceptance length, emitted tokens per step and the rate at each position, by benchmark and variant."""
    most = max(file.num_speculative_tokens for file in run.acceptance.values())
    columns = texts("Benchmark", "Variant") + numbers("Acceptance length", "Emitted per step")
    columns += numbers(*map(str, range(1, most + 1)), group="Accepted at position")
    columns += numbers("Steps with a draft", "All steps", "Drafted", "Accepted", "Tokens past the end")
    table = Table("acceptance-table", "Acceptance by benchmark and variant", columns)
    metrics = [
        "acceptance_length",
        "emitted_tokens_per_step",
        *(f"acceptance_rate_position_{k}" for k in range(1, most + 1)),
    ]
    for benchmark in results.measured("acceptance_length"):
        for variant in run.drafted:
            found = run.acceptance[variant].benchmarks.get(benchmark)
            if found is None:
                continue
            cells = [figure(results.get(variant, metric, benchmark)) for metric in metrics]
            counts = (found.drafts, found.steps, found.draft_tokens, found.accepted, found.accepted_past_end)
            table.rows.append([Cell(benchmark_label(benchmark)), name(variant), *cells, *map(plain, counts)])
    return table


def accuracy(run: Run, results: Results) -> Table:
    """Both extractions, the paired differences, and every reply that was empty, cut or failed."""
    columns = texts("Task", "Variant")
    columns += numbers("score", "against base", group="Strict") + numbers("score", "against base", group="Flexible")
    columns += numbers("Problems", "Empty", "Cut", "Failed")
    table = Table("accuracy-table", "Accuracy by task and variant", columns)
    metrics = [f"accuracy_{kind}{part}" for kind in ("strict", "flexible") for part in ("", "_difference")]
    for task in _tasks(run):
        for variant in run.reproduction.variants:
            score = run.accuracy[variant].tasks.get(task)
            if score is None:
                continue
            cells = [figure(results.get(variant, metric, task)) for metric in metrics]
            counts = (score.n, score.empty + score.thinking_only, score.cut, score.failed)
            table.rows.append([Cell(benchmark_label(task)), name(variant), *cells, *map(plain, counts)])
    return table


def speed(run: Run, results: Results) -> Table:
    """Throughput, speed-up and latency percentiles by concurrency and variant."""
    benchmark = run.reproduction.evaluate.latency.benchmark
    columns = texts("At once", "Variant") + numbers("Tokens per second", "Speed-up", "Machine drift")
    for title in ("Time to first token, ms", "Inter-token latency, ms", "Request latency, s"):
        columns += numbers("median", "95th percentile", group=title)
    table = Table("speed-table", "Speed by concurrency and variant", columns + numbers("Failed"))
    metrics = [
        "tokens_per_s",
        "speedup",
        "machine_drift",
        *(f"{name}_{part}" for name in LATENCY_FIELDS for part in ("p50", "p95")),
    ]
    for level in _levels(run):
        for variant in run.reproduction.variants:
            load = run.latency[variant].concurrency.get(level)
            if load is None:
                continue
            cells = [figure(results.get(variant, f"{metric}_c{level}", benchmark)) for metric in metrics]
            tone = "missed" if load.failures else ""
            failed = Cell(f"{load.failures} of {load.requests}", sort=load.failure_share, tone=tone)
            table.rows.append([Cell(level, sort=int(level)), name(variant), *cells, failed])
    return table


STEP_COLUMNS = {"step_ms": "whole", "verify_ms": "verification", "draft_ms": "drafting"}
TOKEN_COLUMNS = {"break_even_length": "break-even", "expected_length": "expected", "step_length": "served"}
SPEEDUP_COLUMNS = {"predicted_speedup": "predicted", "sweep_speedup": "measured"}


def _served_speedup(run: Run, results: Results, step: Row) -> Row | None:
    """The speed-up at a draft's own length as the table of speeds has it, widened by machine drift; else None."""
    benchmark, _, load = step.benchmark.partition("/")
    level = load.partition(" ")[0] or _levels(run)[0]
    own = run.acceptance[step.variant].num_speculative_tokens
    return results.get(step.variant, f"speedup_c{level}", benchmark) if parse(step.metric).at == own else None


def lengths(run: Run, results: Results) -> Table:
    """What a step costs and yields at each draft length: as served, or on the line through those that were."""
    columns = texts("Variant", "Load") + numbers("Draft tokens") + numbers(*STEP_COLUMNS.values(), group="Step, ms")
    columns += numbers(*TOKEN_COLUMNS.values(), group="Tokens per step")
    columns += numbers(*SPEEDUP_COLUMNS.values(), group="Speed-up")
    table = Table("lengths-table", "Cost and yield of a step by draft length", columns)
    for row in (row for row in results.rows if row.base == "step_ms"):
        tokens = parse(row.metric).at
        cells = [
            figure(results.get(row.variant, f"{metric}_k{tokens:g}", row.benchmark))
            for metric in (*STEP_COLUMNS, *TOKEN_COLUMNS, *SPEEDUP_COLUMNS)
        ]
        if (widened := _served_speedup(run, results, row)) is not None:
            cells[-1] = figure(widened)
        told = [name(row.variant), Cell(benchmark_label(row.benchmark)), plain(tokens)]
        table.rows.append([*told, *cells])
    return table


def training(run: Run, results: Results) -> Table:
    """What each draft cost."""
    columns = texts("Draft") + numbers("Time", "Tokens", "Steps", "Tokens per second")
    columns += numbers("Peak memory, own count", "Parameters")
    table = Table("training-table", "Training cost", columns)
    for variant, summary in run.training.items():
        costs = [figure(results.get(variant, "training_seconds"), ""), plain(summary.tokens), plain(summary.steps)]
        rest = [figure(results.get(variant, metric)) for metric in ("training_peak_memory_bytes", "draft_parameters")]
        table.rows.append([name(variant), *costs, plain(summary.tokens_per_s), *rest])
    return table


def parity(run: Run, results: Results) -> Table:
    """The acceptance length of each draft from validation to serving."""
    columns = texts("Draft", "Benchmark") + numbers(
        "Validation, all sources", "Reference loop", "Served", group="Acceptance length"
    )
    table = Table(
        "parity-table",
        "Acceptance length from validation to serving",
        columns + numbers("Gap, loop − served") + texts("Interval"),
    )
    for variant, file in run.parity.items():
        estimate = run.training[variant].validation.get("acceptance_length_pooled")
        for benchmark, found in file.benchmarks.items():
            lengths = (estimate, found.predicted_length, found.served_length)
            cells = [plain(length, f"{length or 0:.2f}") for length in lengths]
            gap = figure(results.get(variant, "parity_gap", benchmark))
            suspect = f"{file.diagnosis.trap}: {file.diagnosis.said}" if file.diagnosis else ""
            right = found.within and not file.diagnosis
            verdict = Cell(found.told, suspect, tone="met" if right else "missed")
            table.rows.append([name(variant), Cell(benchmark_label(benchmark)), *cells, gap, verdict])
    return table


def published(run: Run, results: Results) -> Table:
    """Published figures for the algorithms of this run beside ours, with what differs."""
    columns = texts("Algorithm", "Metric", "Benchmark") + numbers("Published", "Here") + texts("Ours against it")
    columns += texts("What differs", "Conditions there", "Source")
    table = Table("published-table", "Published figures beside ours", columns)
    for found in all_beside(run, results):
        item, absent = found.item, Cell("not run", found.absent.removeprefix("not run: "), "", "absent")
        ours = figure(found.ours) if found.ours else absent
        metric = described(found.ours.metric).label if found.ours else item.metric.replace("_", " ")
        told = [Cell(variant_label(item.algorithm)), Cell(metric), Cell(benchmark_label(item.benchmark))]
        theirs = Cell(theirs_written(found), sort=found.value)
        differs = Cell("; ".join(found.differs) or DASH)
        conditions = "; ".join(f"{key}: {value}".removeprefix(": ") for key, value in stated(item).items())
        verdict = Cell(found.verdict or DASH, sort=found.ratio[0] if found.ratio else "")
        table.rows.append([*told, theirs, ours, verdict, differs, Cell(conditions), Cell(item.source)])
    return table


def elsewhere(run: Run) -> Table:
    """Published acceptance lengths of the same algorithms on other verifiers, for the order of size."""
    columns = texts("Reproduction", "Algorithm", "Benchmark") + numbers("From", "To", "Figures") + texts("Sources")
    table = Table("elsewhere-table", "Published acceptance lengths for other verifiers", columns)
    for found in all_elsewhere(run):
        least, most = (plain(length, f"{length:.2f}") for length in (found.lengths[0], found.lengths[-1]))
        told = [Cell(found.reproduction), name(found.algorithm), Cell(benchmark_label(found.benchmark))]
        table.rows.append([*told, least, most, plain(len(found.lengths)), Cell(" · ".join(found.sources))])
    return table


def further(results: Results, section: str) -> Table:
    """What a section has besides its figures: a row per metric and benchmark, a column per variant."""
    rows = [row for row in results.rows if (told := described(row.metric)).section == section and not told.chart]
    variants = list(dict.fromkeys(row.variant for row in rows))
    columns = texts("Figure", "Benchmark") + numbers(*map(variant_label, variants))
    table = Table(f"{section}-further", f"Further figures of {section}", columns)
    for metric, benchmark in dict.fromkeys((row.metric, row.benchmark) for row in rows):
        label = ", ".join(part for part in (described(metric).label, place(metric)) if part)
        cells = [_further(results, results.get(variant, metric, benchmark)) for variant in variants]
        table.rows.append([Cell(label), Cell(benchmark_label(benchmark) or DASH), *cells])
    return table


def _further(results: Results, row: Row | None) -> Cell:
    """A figure; that of a best draft length says among which it was found."""
    if row is None or row.metric != "best_draft_tokens":
        return figure(row)
    among = listed([f"{k:g}" for k in compared_lengths(results, row)], "and")
    close = f"; {interval(row)} not told apart" if row.low != row.high else ""
    return figure(row, f"of {among} compared{close}" if among else None)


def in_pairs(run: Run, results: Results) -> Table:
    """Drafts against each other on the same prompts."""
    table = Table("pairs-table", "Drafts against each other", texts("At once", "Faster", "Other") + numbers("Ratio"))
    for row in (row for row in results.rows if row.base == "draft_speed_ratio"):
        level, other = parse(row.metric).at or 0, row.benchmark.partition("/over ")[2]
        verdict = "" if round(row.low or 0.0, 2) > 1 else "not told apart"
        cell = replace(figure(row), doubt=verdict)
        table.rows.append([Cell(f"{level:g}", sort=level), name(row.variant), name(other), cell])
    return table


def all_figures(run: Run, results: Results) -> Table:
    """Every row of results.csv, told in words."""
    columns = texts("Variant", "Figure", "Of", "Benchmark") + numbers("Value", "n") + texts("Better", "Pooled")
    table = Table("figures-table", "Every figure of this run", columns)
    for row in results.rows:
        metric = described(row.metric)
        count_of = plain(row.n)
        told = [Cell(metric.label), Cell(place(row.metric) or DASH), Cell(benchmark_label(row.benchmark) or DASH)]
        rest = [figure(row), count_of, Cell(metric.better or DASH), Cell(metric.pooled or DASH)]
        table.rows.append([name(row.variant), *told, *rest])
    return table
