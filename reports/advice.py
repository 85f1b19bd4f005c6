"""The answers on top of the report: which draft at which load, is the output still the verifier's, how far from others.

Called by `reports.page`. Every sentence follows from rows and their intervals: a draft is called faster when its whole
interval lies above 1, and two drafts whose intervals overlap are not told apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from reports.answer import Answer, in_words, is_faster, is_slower, overlap, usable
from reports.collect import BASE, Run
from reports.names import listed, quantisation, scale_label, variant_label
from reports.others import published
from reports.rows import Results, Row, machine
from reports.soundness import is_sound, lossless


@dataclass(frozen=True)
class Choice:
    """How the sound drafts compare at one load: `rows` are their speed-ups, `tied` is not told apart from `best`."""

    level: int
    rows: dict[str, Row]
    best: str | None
    tied: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)


def levels(run: Run) -> list[int]:
    """Concurrencies at which the base was measured, ascending."""
    return sorted(int(level) for level in run.latency[BASE].concurrency)


def at_once(level: int) -> str:
    """`one request at a time`, `8 requests at once`."""
    return "one request at a time" if level == 1 else f"{level} requests at once"


def choose(run: Run, results: Results, level: int) -> Choice:
    """The fastest sound draft at a load, with those that its interval does not tell apart from it.

    Only on the original verifier: a quantised one is another model, whatever its speed.
    """
    metric, benchmark = f"speedup_c{level}", run.reproduction.evaluate.latency.benchmark
    found = {v: results.get(v, metric, benchmark) for v in run.drafted if is_sound(run, v) and not quantisation(v)}
    rows = {variant: row for variant, row in found.items() if usable(row)}
    faster = sorted((v for v, row in rows.items() if is_faster(row)), key=lambda v: -rows[v].value)
    if not faster:
        return Choice(level, rows, None)
    best, *others = faster
    tied = [variant for variant in others if overlap(rows[variant], rows[best])]
    return Choice(level, rows, best, tied, [variant for variant in others if variant not in tied])


def answers(run: Run, results: Results) -> list[Answer]:
    """The questions that a reader comes with, in order."""
    measured = levels(run)
    asked = dict.fromkeys([measured[0], measured[-1]])
    deploy = [_deploy(run, results, choose(run, results, level)) for level in asked]
    return [*deploy, lossless(run, results), published(run, results)]


def _deploy(run: Run, results: Results, choice: Choice) -> Answer:
    most = len(levels(run)) > 1 and choice.level == levels(run)[-1]
    question = f"Which draft with {at_once(choice.level)}{', the most measured here' if most else ''}?"
    left_out = list(_left_out(run, results, choice))
    if choice.best is None:
        return Answer(question, "none", [*_none_faster(run, choice), *left_out], "missed" if choice.rows else "")
    sentences = [_best(run, results, choice), *_apart(choice), *_best_length(run, results, choice), *left_out]
    if run.scale != "full":
        sentences.append(f"This is a {scale_label(run.scale)}: it says nothing about the worth of a draft.")
    return Answer(question, listed(map(variant_label, [choice.best, *choice.tied]), "or"), sentences, "met")


def _best(run: Run, results: Results, choice: Choice) -> str:
    benchmark = run.reproduction.evaluate.latency.benchmark
    row = choice.rows[choice.best]
    rates = [results.value(variant, f"tokens_per_s_c{choice.level}", benchmark) for variant in (choice.best, BASE)]
    ours, base = (f"{rate:.1f}" for rate in rates)
    use = "Use it" if run.scale == "full" and not choice.tied else "It did best"
    told = f"{use}: " if not choice.tied else ""
    first = choice.level == levels(run)[0]
    place = f" on {machine(run.provenance[f'measured/{BASE}/latency.json'])}" if first else ""
    return (
        f"{told}{variant_label(choice.best)} writes {ours} tokens per second against {base} without a draft: "
        f"{in_words(row)}, over {row.n} requests{place}."
    )


def _apart(choice: Choice) -> Iterator[str]:
    best = variant_label(choice.best)
    if choice.tied:
        told = [f"{variant_label(variant)} with {in_words(choice.rows[variant])}" for variant in choice.tied]
        verb = "is" if len(told) == 1 else "are"
        yield f"{listed(told, 'and')} {verb} not told apart from {best}: the intervals overlap."
    if choice.behind:
        told = [f"{variant_label(variant)} with {in_words(choice.rows[variant])}" for variant in choice.behind]
        yield f"Slower than {best} beyond the intervals, yet faster than no draft: {listed(told, 'and')}."
    faster = {choice.best, *choice.tied, *choice.behind}
    unsure = [v for v, row in choice.rows.items() if v not in faster and not is_slower(row)]
    slower = [v for v, row in choice.rows.items() if v not in faster and is_slower(row)]
    for names, head in ((unsure, "No sure gain"), (slower, "Slower than no draft")):
        if names:
            yield f"{head}: {listed([f'{variant_label(v)} with {in_words(choice.rows[v])}' for v in names], 'and')}."


def _best_length(run: Run, results: Results, choice: Choice) -> Iterator[str]:
    """Which draft length pays at this load, where the time of a step was taken apart."""
    benchmark = run.reproduction.evaluate.latency.benchmark
    for variant in (choice.best, *choice.tied):
        named = [f"{benchmark}/{choice.level} at once", *([benchmark] if choice.level == levels(run)[0] else [])]
        row = next(filter(None, (results.get(variant, "best_draft_tokens", name) for name in named)), None)
        if row is not None and row.value is not None:
            close = "" if row.low == row.high else f" ({row.low:g} to {row.high:g} are not told apart)"
            used = run.acceptance[variant].num_speculative_tokens
            best = f"{row.value:g} draft token{'' if row.value == 1 else 's'} a step"
            yield f"{variant_label(variant)} would do best with {best}{close}; it was served with {used}."


def _none_faster(run: Run, choice: Choice) -> Iterator[str]:
    if not choice.rows:
        yield "No draft without faults has a speed-up at this load; see “Not run”."
        return
    place = machine(run.provenance[f"measured/{BASE}/latency.json"])
    slower = all(map(is_slower, choice.rows.values()))
    told = "every draft is slower than none" if slower else "no draft is surely faster than none"
    best = max(choice.rows, key=lambda variant: choice.rows[variant].value)
    yield f"Serve without a draft there: {told}, on {place}."
    yield f"The best is {variant_label(best)} with {in_words(choice.rows[best])}."


def _left_out(run: Run, results: Results, choice: Choice) -> Iterator[str]:
    """Faulty drafts that look faster, and drafts without a figure."""
    metric, benchmark = f"speedup_c{choice.level}", run.reproduction.evaluate.latency.benchmark
    reasons: dict[str, list[str]] = {}
    for variant in run.drafted:
        row = results.get(variant, metric, benchmark)
        shown = f"{variant_label(variant)} with {in_words(row)}" if row and row.value else variant_label(variant)
        if not usable(row):
            reasons.setdefault(row.note if row else "not run: no such measurement", []).append(shown)
        elif not is_sound(run, variant):
            reasons.setdefault("because it changes the output", []).append(shown)
        elif quantisation(variant):
            reasons.setdefault("on a quantised verifier, which is another model", []).append(shown)
    for reason, told in reasons.items():
        yield f"Left out: {listed(told, 'and')}, {reason}."
