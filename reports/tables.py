"""The tables of the report. Called by `reports.page`."""

from collections.abc import Sequence

from reports.cells import DASH, Cell, Table, figure, interval, name, numbers, plain, texts
from reports.collect import BASE, Run
from reports.gates import Gate
from reports.metrics import count, described, duration, written
from reports.names import benchmark_label, split_label, variant_label
from reports.rows import BASELINES, LATENCY_FIELDS, Results


def _levels(run: Run) -> list[str]:
    return sorted(run.latency[BASE].concurrency, key=int)


def _tasks(run: Run) -> list[str]:
    return [task for task, score in run.accuracy[BASE].tasks.items() if not score.not_run]


def leaderboard(run: Run, results: Results, best: str | None) -> Table:
    """One row per variant, everything that decides between them; `best` is marked."""
    speed_at = run.reproduction.evaluate.latency.benchmark
    lengths, tasks, levels = results.measured("acceptance_length"), _tasks(run), _levels(run)
    columns = texts("Variant")
    columns += numbers(*(f"{level} at once" for level in levels), group="Tokens per second, speed-up")
    columns += numbers(*map(benchmark_label, lengths), group="Acceptance length")
    columns += numbers("exact", "faults", group="Output match")
    columns += numbers(*map(benchmark_label, tasks), group="Accuracy") + numbers("Parity gap", "Training")
    table = Table("leaderboard", "All variants side by side", columns)
    mark = "recommended here" if run.scale == "full" else "did best here"
    for variant in run.reproduction.variants:
        cells = [name(variant, mark if variant == best else "")]
        cells += [_speed(results, variant, level, speed_at) for level in levels]
        cells += [figure(results.get(variant, "acceptance_length", item)) for item in lengths]
        cells += [figure(results.get(variant, "output_match_exact")), _faults(results, variant)]
        cells += [_accuracy(results, variant, task) for task in tasks]
        table.rows.append([*cells, _worst_parity(run, results, variant), _cost(results, variant)])
    return table


def _speed(results: Results, variant: str, level: str, benchmark: str) -> Cell:
    cell = figure(results.get(variant, f"tokens_per_s_c{level}", benchmark))
    ratio = results.get(variant, f"speedup_c{level}", benchmark)
    if ratio is None or ratio.value is None:
        return cell
    return Cell(cell.text, f"{written(ratio.metric, ratio.value)} ({interval(ratio)})", cell.sort)


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
    within = all(parity.within for parity in run.parity[variant].benchmarks.values())
    told, tone = ("within", "met") if within else ("outside", "missed")
    return Cell(written("parity_gap", worst.value), told, abs(worst.value), tone)


def _cost(results: Results, variant: str) -> Cell:
    seconds = results.value(variant, "training_seconds")
    if seconds is None:
        return figure(None)
    return Cell(duration(seconds), f"{count(results.value(variant, 'training_tokens') or 0)} tokens", seconds)


def gates(found: Sequence[Gate]) -> Table:
    """The verdict on every gate."""
    table = Table("gates", "Gates", texts("Verdict", "Variant", "Metric", "Benchmark", "Wanted", "Found"))
    for gate in found:
        where = Cell(benchmark_label(gate.benchmark) or DASH)
        cells = [Cell(gate.verdict, tone=gate.verdict), name(gate.variant), Cell(gate.name), where, Cell(gate.wanted)]
        table.rows.append([*cells, Cell(gate.found, gate.interval)])
    return table


def acceptance(run: Run, results: Results) -> Table:
    """Acceptance length, emitted tokens per step and the rate at each position, by benchmark and variant."""
    most = max(file.num_speculative_tokens for file in run.acceptance.values())
    columns = texts("Benchmark", "Variant") + numbers("Acceptance length", "Emitted per step")
    columns += numbers(*map(str, range(1, most + 1)), group="Accepted at position")
    columns += numbers("Verify steps", "Drafted", "Accepted", "Past the end")
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
            counts = (found.drafts, found.draft_tokens, found.accepted, found.accepted_past_end)
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
            counts = (score.n, score.empty, score.cut, score.failed)
            table.rows.append([Cell(benchmark_label(task)), name(variant), *cells, *map(plain, counts)])
    return table


def speed(run: Run, results: Results) -> Table:
    """Throughput, speed-up and latency percentiles by concurrency and variant."""
    benchmark = run.reproduction.evaluate.latency.benchmark
    columns = texts("At once", "Variant") + numbers("Tokens per second", "Speed-up")
    for title in ("Time to first token, ms", "Inter-token latency, ms", "Request latency, s"):
        columns += numbers("median", "95%", group=title)
    table = Table("speed-table", "Speed by concurrency and variant", columns + numbers("Failed"))
    metrics = ["tokens_per_s", "speedup", *(f"{name}_{part}" for name in LATENCY_FIELDS for part in ("p50", "p95"))]
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


def training(run: Run, results: Results) -> Table:
    """What each draft cost."""
    columns = texts("Draft") + numbers("Time", "Tokens", "Steps", "Tokens per second", "Peak memory", "Parameters")
    table = Table("training-table", "Training cost", columns)
    for variant, summary in run.training.items():
        costs = [figure(results.get(variant, "training_seconds"), ""), plain(summary.tokens), plain(summary.steps)]
        rest = [figure(results.get(variant, metric)) for metric in ("training_peak_memory_bytes", "draft_parameters")]
        table.rows.append([name(variant), *costs, plain(summary.tokens_per_s), *rest])
    return table


def parity(run: Run, results: Results) -> Table:
    """The acceptance length of each draft from validation to serving."""
    columns = texts("Draft", "Benchmark") + numbers("Validation", "Reference loop", "Served", group="Acceptance length")
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
            suspect = found.first_suspect or ""
            verdict = Cell("within", tone="met") if found.within else Cell("outside", suspect, tone="missed")
            table.rows.append([name(variant), Cell(benchmark_label(benchmark)), *cells, gap, verdict])
    return table


def published(run: Run) -> Table:
    """Figures of others for this verifier, with their conditions and sources."""
    columns = texts("Algorithm", "Metric", "Benchmark") + numbers("Value") + texts("Conditions", "Source")
    table = Table("published-table", "Figures of others", columns)
    for item in run.published:
        values = item.value if isinstance(item.value, list) else [item.value]
        held = item.conditions.items() if isinstance(item.conditions, dict) else ()
        conditions = "; ".join(f"{key}: {value}" for key, value in held) or str(item.conditions or "")
        told = [Cell(item.algorithm), Cell(item.metric.replace("_", " ")), Cell(benchmark_label(item.benchmark))]
        table.rows.append([*told, Cell(" / ".join(map(str, values))), Cell(conditions), Cell(item.source)])
    return table


def not_run(run: Run, results: Results) -> Table:
    """Everything that has no figure, with the reason."""
    table = Table("not-run-table", "Not run", texts("What", "Where", "Why"))
    for source in run.sources.sources:
        if source.not_run:
            what = Cell(f"prompts, {split_label(source.split)}")
            table.rows.append([what, Cell(benchmark_label(source.source)), Cell(f"not run: {source.not_run}")])
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for row in results.not_run():
        grouped.setdefault((described(row.metric).label, row.benchmark, row.note), []).append(row.variant)
    for (label, benchmark, note), variants in grouped.items():
        listed = ", ".join(dict.fromkeys(map(variant_label, variants)))
        unserved = variants[0] in BASELINES and variants[0] not in run.reproduction.variants
        told = f"{listed}, every metric" if unserved else f"{label}: {listed}"
        table.rows.append([Cell(told), Cell(benchmark_label(benchmark) or DASH), Cell(note)])
    return table


def data(run: Run) -> Table:
    """Prompts by source, as asked for and as they came."""
    table = Table("data-table", "Prompts by source", texts("Source", "Split") + numbers("Rows", "Asked for"))
    for source in run.sources.sources:
        rows = Cell("not run", source.not_run, 0, "absent") if source.not_run else plain(source.rows)
        where = [Cell(benchmark_label(source.source)), Cell(split_label(source.split))]
        table.rows.append([*where, rows, plain(source.rows_asked)])
    return table


def capture(run: Run) -> Table:
    """The replies and states that the drafts learnt from."""
    found = run.manifest
    columns = numbers("Replies", "Tokens", "Supervised", "Cut at the limit", "Dropped", "Time", "Tokens per second")
    dropped = Cell(f"{sum(found.dropped.values()):,}", ", ".join(f"{n} {why}" for why, n in found.dropped.items() if n))
    counts = map(plain, (found.rows, found.tokens, found.supervised_tokens, found.cut_at_limit))
    rate = plain(found.tokens_per_s)
    return Table(
        "capture-table",
        "Captured replies",
        columns,
        [[*counts, dropped, plain(found.seconds, duration(found.seconds)), rate]],
    )


def servers(run: Run) -> Table:
    """What each server said of itself."""
    columns = texts("Variant", "Method") + numbers("Draft tokens per step", "Longest sequence", "Ready after")
    table = Table("servers-table", "The servers, as they report themselves", columns)
    for variant, server in run.servers.items():
        drafted = plain(server.num_speculative_tokens or None)
        rest = (plain(server.max_model_len), plain(server.startup_s, duration(server.startup_s)))
        table.rows.append([name(variant), Cell(server.method or DASH), drafted, *rest])
    return table


def costs(run: Run) -> Table:
    """Wall time and peak memory of every step."""
    table = Table("costs-table", "What each step took", texts("Step") + numbers("Wall time", "Peak memory"))
    for cost in run.costs:
        peak = plain(cost.peak_memory_mib, f"{(cost.peak_memory_mib or 0) / 1024:.2f} GiB")
        table.rows.append([Cell(cost.rule), plain(cost.wall_s, duration(cost.wall_s)), peak])
    if len(run.costs) > 1:
        total_s, most = sum(cost.wall_s for cost in run.costs), max(cost.peak_memory_mib or 0 for cost in run.costs)
        table.rows.append(
            [Cell("all together"), plain(total_s, duration(total_s)), plain(most, f"{most / 1024:.2f} GiB")]
        )
    return table


def provenance(run: Run) -> Table:
    """Where every result file comes from."""
    labels = ("File", "Commit", "Uncommitted changes", "Seed", "Settings", "Finished", "File hash")
    table = Table("provenance-table", "Provenance of every file", texts(*labels))
    dirt = {True: "yes", False: "no", None: "unknown"}
    for file, found in run.provenance.items():
        commit, seed = (found.commit or "unknown")[:12], DASH if found.seed is None else str(found.seed)
        hashes = (found.settings_sha256[:12], found.finished_at[:19].replace("T", " "), run.sha256[file][:12])
        table.rows.append([Cell(text) for text in (file, commit, dirt[found.dirty], seed, *hashes)])
    return table
