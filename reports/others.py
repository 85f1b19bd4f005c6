"""How far our figures are from published ones, in words. Used by `reports.advice`; `reports.beside` makes the pairs."""

from collections import Counter
from collections.abc import Iterator

from reports.answer import Answer, in_words
from reports.beside import Beside, all_beside, all_elsewhere, theirs_written
from reports.collect import Run
from reports.names import benchmark_label, listed, variant_label
from reports.rows import Results
from reports.wording import described

SHOWN_PUBLISHED = 3


def published(run: Run, results: Results) -> Answer:
    """The nearest published figures, what differs, or the order of size on other verifiers."""
    question = "How far are the figures from published ones?"
    if not run.published:
        said = f"Nobody has published figures for drafts of {run.reproduction.verifier.id} that we know of."
        return Answer(question, "there are none for this verifier", [said, *_orientation(run, results)])
    beside = all_beside(run, results)
    ours = [each for each in beside if each.ratio is not None]
    if not ours:
        reasons = dict.fromkeys(each.absent for each in beside)
        why = f": {listed(list(reasons)[:SHOWN_PUBLISHED], 'and')}" if reasons else ""
        said = f"None of the {len(run.published)} published figures has a counterpart here{why}."
        return Answer(question, "nothing to compare", [said])
    order = sorted(ours, key=lambda each: (each.ours.base != "acceptance_length", len(each.differs)))
    nearest = list({each.item.algorithm: each for each in reversed(order)}.values())[::-1]
    sentences = [_one_published(each) for each in nearest[:SHOWN_PUBLISHED]]
    verdict = f"{variant_label(nearest[0].item.algorithm)}: {nearest[0].verdict}"
    return Answer(question, verdict, [*sentences, f"{len(ours)} figures in all are under “Figures of others”."])


def _orientation(run: Run, results: Results) -> Iterator[str]:
    """The order of size on other verifiers, by the benchmark that most figures are published on."""
    found = [each for each in all_elsewhere(run) if each.algorithm in run.training]
    if not found:
        return
    counted = Counter(each.benchmark for each in found for _ in each.lengths)
    benchmark = counted.most_common(1)[0][0]
    said = []
    found = [each for each in found if each.benchmark == benchmark]
    for algorithm in dict.fromkeys(each.algorithm for each in found):
        lengths = [length for each in found if each.algorithm == algorithm for length in each.lengths]
        said.append(f"{variant_label(algorithm)} {min(lengths):.2f} to {max(lengths):.2f}")
    yield (
        f"For the order of size, acceptance lengths published for other verifiers on {benchmark_label(benchmark)}: "
        f"{listed(said, 'and')}."
    )
    rows = [results.get(v, "acceptance_length", b) for v in run.training for b in results.measured("acceptance_length")]
    ours = [row.value for row in rows if row is not None and row.value is not None]
    if ours:
        yield (
            f"Here they lie between {min(ours):.2f} and {max(ours):.2f}: another verifier, other prompts, and drafts "
            f"that learnt from {run.manifest.rows:,} replies."
        )


def _one_published(found: Beside) -> str:
    label = described(found.ours.metric).label.lower()
    why = f" What differs: {'; '.join(found.differs)}." if found.differs else " The stated conditions are alike."
    return (
        f"{variant_label(found.item.algorithm)}, {label} on {benchmark_label(found.ours.benchmark)}: "
        f"{in_words(found.ours)} here, {theirs_written(found)} published, {found.verdict}.{why}"
    )
