"""Tables on the origins of results: what was not run, data, servers, costs, provenance. Called by `reports.page`."""

import algorithms
from harness.sections.verifier import HubVerifier, WheelVerifier
from reports.cells import DASH, Cell, Table, name, numbers, plain, texts
from reports.collect import OPTIONAL, Run
from reports.names import BENCHMARK_NOTES, LOOK_UPS, benchmark_label, split_label, variant_label
from reports.rows import BASELINES, Results
from reports.wording import described, duration

# What `harness.serving.cpu_support` adds, by the start of what it says of itself.
IN_WORDS = {
    "per-layer context k-norm": "each layer of a draft norms what it keeps of the verifier's context with its own "
    "weights; the CPU build takes the first layer's for all",
    "temperature of draft tokens": "sampled replies keep their temperature where tokens are drafted, or they are noise",
    "places of draft tokens behind images": "drafts do not overwrite their context; matters with a verifier that reads "
    "images only",
    "second model runner": "some drafts run on vLLM's second runner alone, whose kernels need Triton, which the CPU "
    "build lacks",
}


def weights(run: Run) -> str:
    """Which weights of the verifier: revision or package, and the hash that the capture saw."""
    verifier, digest = run.reproduction.verifier, str(run.manifest.verifier.get("sha256", ""))[:12]
    told: str = verifier.source
    if isinstance(verifier, HubVerifier):
        told = f"revision {verifier.revision[:12]}"
    if isinstance(verifier, WheelVerifier):
        told = f"{verifier.file} of {verifier.package} {verifier.version}"
    return f"{told}, SHA-256 {digest}" if digest else told


def variants(run: Run) -> Table:
    """What each variant is, in its algorithm's own words, and how far it drafts."""
    columns = texts("Variant", "What it is") + numbers("Draft tokens per step")
    table = Table("variants-table", "What each variant is", columns)
    for variant in run.reproduction.variants:
        base = run.reproduction.base_of(variant)
        own = variant.removesuffix(base.removeprefix("none")) if base != variant else "none"
        known = own in run.reproduction.algorithms
        told = (algorithms.config_class(own).__doc__ or "").split("\n\n")[0] if known else LOOK_UPS.get(own, DASH)
        drafted = run.acceptance[variant].num_speculative_tokens
        table.rows.append([name(variant), Cell(" ".join(told.split())), plain(drafted or None)])
    return table


def _untimed(run: Run) -> list[str]:
    """Drafts whose steps were not taken apart."""
    asked = run.reproduction.evaluate.speed
    return [v for v in run.reproduction.algorithms if asked is not None and v not in asked.draft_tokens]


def not_run(run: Run, results: Results) -> Table:
    """Everything that has no figure, with the reason."""
    table = Table("not-run-table", "Not run", texts("What", "Where", "Why"))
    for source in run.sources.sources:
        if source.not_run:
            what = Cell(f"prompts, {split_label(source.split)}")
            table.rows.append([what, Cell(benchmark_label(source.source)), Cell(f"not run: {source.not_run}")])
    for folder, check in OPTIONAL.items():
        if not any(path.startswith(f"{folder}/") for path in run.extras):
            table.rows.append([Cell(check), Cell(DASH), Cell(f"not run: the run left nothing in {folder}/")])
    if untimed := _untimed(run):
        what = Cell(f"cost of a step by draft length: {', '.join(map(variant_label, untimed))}")
        why = "not run: evaluate.speed.draft_tokens of the recipe does not name them"
        table.rows.append([what, Cell(benchmark_label(run.reproduction.evaluate.latency.benchmark)), Cell(why)])
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
    table = Table(
        "data-table", "Prompts by source", texts("Source", "Split", "What it is") + numbers("Rows", "Asked for")
    )
    for source in run.sources.sources:
        rows = Cell("not run", source.not_run, 0, "absent") if source.not_run else plain(source.rows)
        where = [Cell(benchmark_label(source.source)), Cell(split_label(source.split))]
        where.append(Cell(BENCHMARK_NOTES.get(source.source, DASH)))
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
    columns = (
        texts("Variant", "Method") + numbers("Draft tokens per step", "Longest sequence") + texts("Type", "Runner")
    )
    table = Table("servers-table", "The servers, as they report themselves", columns + numbers("Ready after"))
    for variant, server in run.servers.items():
        told = [name(variant), Cell(server.method or DASH), plain(server.num_speculative_tokens or None)]
        runner = server.settings.engine.get("model_runner")
        told += [plain(server.max_model_len), Cell(server.dtype or DASH), Cell(runner or DASH)]
        table.rows.append([*told, plain(server.startup_s, duration(server.startup_s))])
    return table


def support(run: Run) -> Table:
    """What was added to the engine of each server; empty where nothing was."""
    table = Table(
        "support-table", "What was added to vLLM for its servers", texts("Added to the engine", "For", "In plain words")
    )
    found: dict[str, list[str]] = {}
    for variant, server in run.servers.items():
        for line in server.settings.support:
            found.setdefault(line, []).append(variant)
    for line, variants in found.items():
        everyone = len(variants) == len(run.servers) > 1
        told = "all servers" if everyone else ", ".join(map(variant_label, variants))
        words = next((words for head, words in IN_WORDS.items() if line.startswith(head)), DASH)
        if line.endswith("kernels in PyTorch"):
            words = "written anew, since Triton's interpreter takes a thousand times as long"
        table.rows.append([Cell(line), Cell(told), Cell(words)])
    return table


def serve_commands(run: Run) -> list[str]:
    """The command line of every server that drafts, as it was started."""
    return [
        " ".join(server.command) for variant, server in run.servers.items() if variant in run.drafted and server.command
    ]


def costs(run: Run) -> Table:
    """Wall time and peak memory of every step."""
    table = Table("costs-table", "What each step took", texts("Step") + numbers("Wall time", "Peak memory, sampled"))
    for cost in run.costs:
        peak = plain(cost.peak_memory_mib, f"{(cost.peak_memory_mib or 0) / 1024:.2f} GiB")
        table.rows.append([Cell(cost.rule), plain(cost.wall_s, duration(cost.wall_s)), peak])
    if len(run.costs) > 1:
        total_s, most = sum(cost.wall_s for cost in run.costs), max(cost.peak_memory_mib or 0 for cost in run.costs)
        table.rows.append(
            [
                Cell("sum of steps, largest peak"),
                plain(total_s, duration(total_s)),
                plain(most, f"{most / 1024:.2f} GiB"),
            ]
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
