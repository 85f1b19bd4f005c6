"""What a reader must know before quoting a figure: gates, mixed origins, cut replies, counting.

Called by `reports.page`. Every sentence follows from the files; none is fixed.
"""

from collections.abc import Iterator, Sequence

from reports.collect import BASE, Run
from reports.gates import MISSED, Gate
from reports.names import benchmark_label, listed, variant_label
from reports.rows import Results, machine
from reports.wording import signed

EXTRACTION_GAP = 0.10
PAST_END_GAP = 0.02
CUT_SHARE = 0.10
FEW_REQUESTS = 20


def cautions(run: Run, results: Results, gates: Sequence[Gate]) -> list[str]:
    """One sentence each, the gravest first."""
    speeds = [*_few(run), *_doubtful(results)]
    counted = [*_cut_warnings(run), *_extraction_warnings(results), *_counting_warnings(run)]
    return [*_gate_warning(gates), *_state_warnings(run), *speeds, *counted, *_long_prompts(run), *_missing(run)]


def _few(run: Run) -> Iterator[str]:
    requests = min((load.requests for load in run.latency[BASE].concurrency.values()), default=0)
    if run.scale == "full" and 0 < requests < FEW_REQUESTS:
        yield f"Speeds come from {requests} requests per load in one run; another run may lie outside these intervals."


def _doubtful(results: Results) -> Iterator[str]:
    """Figures that stand there with a doubt: not comparable, and why."""
    doubts: dict[str, list[str]] = {}
    for row in results.rows:
        if row.value is not None and row.note:
            doubts.setdefault(row.note, []).append(variant_label(row.variant))
    for note, variants in doubts.items():
        yield f"Speeds of {listed(dict.fromkeys(variants), 'and')} are {note}."


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
    shares: dict[str, dict[str, float]] = {}
    for variant, acceptance in run.acceptance.items():
        for source, found in acceptance.benchmarks.items():
            length, emitted = found.acceptance_length_pooled, found.emitted_tokens_per_step
            # Without a count past the end the two differ for another reason: steps that drafted nothing.
            if found.accepted_past_end and length and emitted and length / emitted - 1 > PAST_END_GAP:
                shares.setdefault(source, {})[variant] = length / emitted - 1
    for source, by_variant in shares.items():
        least, most = (f"{edge(by_variant.values()):.0%}" for edge in (min, max))
        share = most if least == most else f"{least} to {most}"
        who = listed(map(variant_label, by_variant), "and")
        lies = "of the acceptance length lies past the end of replies (unseen tokens); see emitted per step."
        yield f"{who} on {benchmark_label(source)}: {share} {lies}"


def _long_prompts(run: Run) -> Iterator[str]:
    """Beyond the length of its training a draft is on its own, whatever positions its config allows."""
    known = [each.longest_row_tokens for each in run.training.values() if each.longest_row_tokens]
    for source in run.sources.sources:
        if known and source.split == "heldout" and source.prompt_tokens_max > max(known):
            yield (
                f"{benchmark_label(source.source)}: prompts of up to {source.prompt_tokens_max} tokens; the drafts "
                f"learnt from prompts and replies of up to {max(known)} together."
            )


def _missing(run: Run) -> Iterator[str]:
    for variant, acceptance in run.acceptance.items():
        if acceptance.failed:
            yield f"{variant_label(variant)}: {len(acceptance.failed)} replies failed and are counted nowhere."
    for variant, match in run.match.items():
        if match.missing:
            yield f"{variant_label(variant)}: {len(match.missing)} replies have no counterpart and were not compared."
