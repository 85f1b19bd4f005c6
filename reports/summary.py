"""The report in plain words: which draft to use here, what it does to the output, and what to be careful about.

Called by `reports.page`. Every sentence follows from rows; none is fixed.
"""

from collections.abc import Iterator, Sequence

from reports.collect import BASE, Run
from reports.gates import MISSED, Gate
from reports.metrics import signed, spread, written
from reports.names import benchmark_label, scale_label, variant_label
from reports.rows import Results, Row, machine

EXTRACTION_GAP = 0.10
PAST_END_GAP = 0.02
CUT_SHARE = 0.10


def levels(run: Run) -> list[int]:
    """Concurrencies at which the base was measured, ascending."""
    return sorted(int(level) for level in run.latency[BASE].concurrency)


def at_once(level: int) -> str:
    """`one request at a time`, `8 requests at once`."""
    return "one request at a time" if level == 1 else f"{level} requests at once"


def _speedup(run: Run, results: Results, variant: str, level: int) -> Row | None:
    row = results.get(variant, f"speedup_c{level}", run.reproduction.evaluate.latency.benchmark)
    return row if row and row.value is not None else None


def _is_faster(row: Row | None) -> bool:
    """Surely faster: the whole interval (or, without one, the value) lies above 1."""
    return row is not None and (row.value if row.low is None else row.low) > 1


def best_variant(run: Run, results: Results) -> str | None:
    """The fastest variant at the lowest concurrency among those without faults; None where none is surely faster."""
    sound = [variant for variant in run.drafted if run.match[variant].faults == 0]
    found = {variant: _speedup(run, results, variant, levels(run)[0]) for variant in sound}
    faster = {variant: row.value for variant, row in found.items() if _is_faster(row)}
    return max(faster, key=faster.get) if faster else None


def summary(run: Run, results: Results, best: str | None) -> list[str]:
    """The sentences on top of the report, the advice first."""
    if best is None:
        return [_no_advice(run, results), *_faulty(run)]
    rest = [*_elsewhere(run, results, best), _output(run, best), *_accuracy(run, results, best), *_faulty(run)]
    return [_advice(run, results, best), *rest]


def _scene(run: Run) -> str:
    return "Here" if run.scale == "full" else f"In this {scale_label(run.scale)}"


def _no_advice(run: Run, results: Results) -> str:
    tried = " or ".join(variant_label(variant) for variant in run.drafted)
    return (
        f"{_scene(run)}, use no draft: with {at_once(levels(run)[0])}, {tried} gives no sure gain in speed together "
        f"with the verifier's own output, on {results.rows[0].machine}."
    )


def _advice(run: Run, results: Results, best: str) -> str:
    level, benchmark = levels(run)[0], run.reproduction.evaluate.latency.benchmark
    row = _speedup(run, results, best, level)
    ours, base = (results.value(variant, f"tokens_per_s_c{level}", benchmark) for variant in (best, BASE))
    advice = (
        f"Use {variant_label(best)} here" if run.scale == "full" else f"{_scene(run)}, {variant_label(best)} did best"
    )
    return (
        f"{advice}: with {at_once(level)} it writes {ours:.1f} tokens per second against {base:.1f} without a draft, "
        f"{row.value:.2f} times as fast, on {results.rows[0].machine}."
    )


def _elsewhere(run: Run, results: Results, best: str) -> Iterator[str]:
    for level in levels(run)[1:]:
        row = _speedup(run, results, best, level)
        if row is None:
            continue
        told = f"With {at_once(level)} it is {row.value:.2f} times as fast"
        if _is_faster(row):
            yield f"{told}."
        elif row.high is not None and row.high < 1:
            yield f"{told}: serve without a draft there."
        else:
            yield f"{told}, which is no sure gain."


def _output(run: Run, best: str) -> str:
    match = run.match[best]
    apart = match.total - match.exact
    same = f"Its output is the verifier's own: {match.exact} of {match.total} greedy replies are identical"
    if not apart:
        return f"{same}."
    verb = "parts" if apart == 1 else "part"
    return f"{same}, the other {apart} {verb} where the verifier is itself undecided between two tokens."


def _accuracy(run: Run, results: Results, best: str) -> Iterator[str]:
    for task in run.accuracy[best].tasks:
        row = results.get(best, "accuracy_flexible_difference", task)
        if row is None or row.value is None:
            continue
        verdict = (
            "no difference within the paired interval" if row.low <= 0 <= row.high else "beyond the paired interval"
        )
        change = f"{written(row.metric, row.value)} points ({spread(row.metric, row.low, row.high)})"
        yield f"Accuracy on {benchmark_label(task)} changes by {change}: {verdict}."


def _faulty(run: Run) -> Iterator[str]:
    for variant in run.drafted:
        if faults := run.match[variant].faults:
            told = "1 reply departs" if faults == 1 else f"{faults} replies depart"
            yield f"Do not deploy {variant_label(variant)}: {told} from what the verifier clearly prefers."


def warnings(run: Run, results: Results, gates: Sequence[Gate]) -> list[str]:
    """What a reader must know before quoting a figure."""
    counted = [*_cut_warnings(run), *_extraction_warnings(results), *_counting_warnings(run)]
    return [*_gate_warning(gates), *_state_warnings(run), *counted, *_missing(run)]


def _gate_warning(gates: Sequence[Gate]) -> Iterator[str]:
    missed = sum(gate.verdict == MISSED for gate in gates)
    if missed:
        yield f"{missed} of {len(gates)} gates {'is' if missed == 1 else 'are'} missed."


def _state_warnings(run: Run) -> Iterator[str]:
    commits = {provenance.commit for provenance in run.provenance.values()}
    if len(commits) > 1:
        yield f"The files come from {len(commits)} different commits; the provenance says which."
    if len({machine(provenance) for provenance in run.provenance.values()}) > 1:
        yield "The files were made on different machines, so speeds are not comparable; the provenance says which."
    if len({str(provenance.versions) for provenance in run.provenance.values()}) > 1:
        yield "The files were made with different versions of the tools; the provenance says which."
    if None in commits:
        yield "Some files were made outside a git checkout, so their commit is unknown."
    if any(provenance.dirty for provenance in run.provenance.values()):
        yield "Some files were made with uncommitted changes, so the commit alone does not reproduce them."


def _extraction_warnings(results: Results) -> Iterator[str]:
    for task in results.measured("accuracy_strict"):
        gaps = []
        for row in results.rows:
            flexible = results.value(row.variant, "accuracy_flexible", task)
            if (row.metric, row.benchmark) == ("accuracy_strict", task) and None not in (row.value, flexible):
                gaps.append(row.value - flexible)
        if gaps and max(map(abs, gaps)) > EXTRACTION_GAP:
            most = signed(100 * max(gaps, key=abs), 0)
            yield (
                f"On {benchmark_label(task)}, strict and flexible accuracy differ by up to {most} points: "
                "answers are often right but not in the demanded form."
            )


def _cut_warnings(run: Run) -> Iterator[str]:
    for task, score in run.accuracy[BASE].tasks.items():
        if score.n and score.cut / score.n > CUT_SHARE:
            yield (
                f"On {benchmark_label(task)}, {score.cut} of {score.n} replies without a draft were cut at the length "
                "limit: accuracy is lower than the model's own."
            )


def _counting_warnings(run: Run) -> Iterator[str]:
    for variant, acceptance in run.acceptance.items():
        for source, found in acceptance.benchmarks.items():
            length, emitted = found.acceptance_length_pooled, found.emitted_tokens_per_step
            # Without a count past the end the two differ for another reason: steps that drafted nothing.
            if found.accepted_past_end and length and emitted and length / emitted - 1 > PAST_END_GAP:
                where, share = f"{variant_label(variant)} on {benchmark_label(source)}", length / emitted - 1
                lies = "of the acceptance length lies past the end of replies; see emitted per step."
                yield f"{where}: {share:.0%} {lies}"


def _missing(run: Run) -> Iterator[str]:
    for variant, acceptance in run.acceptance.items():
        if acceptance.failed:
            yield f"{variant_label(variant)}: {len(acceptance.failed)} replies failed and are counted nowhere."
    for variant, match in run.match.items():
        if match.missing:
            yield f"{variant_label(variant)}: {len(match.missing)} replies have no counterpart and were not compared."
