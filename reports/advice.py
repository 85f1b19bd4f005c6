"""The answers on top of the report: which draft at which load, is the output still the verifier's, how far from others.

Called by `reports.page`. Every sentence follows from rows and their intervals: a draft is called faster when its whole
interval lies above 1, and two drafts are told apart when that of their direct ratio does.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from reports.answer import Answer, in_words, is_faster, is_slower, overlap, usable
from reports.collect import BASE, Run
from reports.names import benchmark_label, listed, quantisation, scale_label, variant_label
from reports.others import published
from reports.rows import Results, Row, machine
from reports.soundness import is_sound, lossless
from reports.wording import parse


@dataclass(frozen=True)
class Choice:
    """How the sound drafts compare at one load: `rows` are their speed-ups, `tied` is not told apart from `best`.

    `ratios` are the speeds of `best` over each of the other faster drafts, where both were timed on the same prompts.
    """

    level: int
    rows: dict[str, Row]
    best: str | None
    tied: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    ratios: dict[str, Row] = field(default_factory=dict)

    def told(self, variant: str) -> str:
        """`b with 1.67× (1.38 to 2.03), a / b = 1.24× (1.02 to 1.49)`."""
        told = f"{variant_label(variant)} with {in_words(self.rows[variant])}"
        if self.best is None or variant not in self.ratios:
            return told
        ratio = in_words(self.ratios[variant])
        return f"{told}, {variant_label(self.best)} / {variant_label(variant)} = {ratio}"


def levels(run: Run) -> list[int]:
    """Concurrencies at which the base was measured, ascending."""
    return sorted(int(level) for level in run.latency[BASE].concurrency)


def at_once(level: int) -> str:
    """`one request at a time`, `8 requests at once`."""
    return "one request at a time" if level == 1 else f"{level} requests at once"


def choose(run: Run, results: Results, level: int) -> Choice:
    """The fastest sound draft at a load, with those that the direct ratio does not tell apart from it.

    Only on the original verifier: a quantised one is another model, whatever its speed.
    """
    metric, benchmark = f"speedup_c{level}", run.reproduction.evaluate.latency.benchmark
    found = {v: results.get(v, metric, benchmark) for v in run.drafted if is_sound(run, v) and not quantisation(v)}
    rows = {variant: row for variant, row in found.items() if usable(row)}
    faster = sorted((v for v, row in rows.items() if is_faster(row)), key=lambda v: -rows[v].value)
    if not faster:
        return Choice(level, rows, None)
    best, *others = faster
    direct = {v: results.get(best, f"draft_speed_ratio_c{level}", f"{benchmark}/over {v}") for v in others}
    ratios = {v: row for v, row in direct.items() if usable(row)}
    tied = [v for v in others if (not is_faster(ratios[v]) if v in ratios else overlap(rows[v], rows[best]))]
    return Choice(level, rows, best, tied, [variant for variant in others if variant not in tied], ratios)


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
    scope = _scope(run, results, choice) if choice.level == levels(run)[0] else []
    sentences = [_best(run, results, choice), *scope, *_apart(choice), *_best_length(run, results, choice), *left_out]
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


def _scope(run: Run, results: Results, choice: Choice) -> Iterator[str]:
    """What was timed: the kind and length of replies, and how much is accepted elsewhere."""
    benchmark = run.reproduction.evaluate.latency.benchmark
    learnt = benchmark in {source.name for source in run.reproduction.data.train}
    length = results.value(BASE, f"output_tokens_per_request_c{choice.level}", benchmark)
    kind = f"{benchmark_label(benchmark)}{', as the drafts learnt from' if learnt else ''}"
    yield f"Speeds are of {kind}{f', with replies of {length:.0f} tokens' if length else ''}."
    row = results.get(choice.best, "acceptance_length", benchmark)
    rows = [results.get(choice.best, "acceptance_length", b) for b in results.measured("acceptance_length")]
    others = [each for each in rows if each and each.value is not None and each.benchmark != benchmark]
    if others and row is not None and row.value is not None:
        told = [f"{each.value:.2f} tokens on {benchmark_label(each.benchmark)}" for each in others]
        yield (
            f"No other speed was measured; a step of {variant_label(choice.best)} yields {listed(told, 'and')}, "
            f"against {row.value:.2f} here."
        )


def _apart(choice: Choice) -> Iterator[str]:
    best = variant_label(choice.best)
    if choice.tied:
        verb = "is" if len(choice.tied) == 1 else "are"
        why = "" if set(choice.tied) <= choice.ratios.keys() else ": the intervals overlap"
        yield f"Not told apart from {best} {verb} {listed(map(choice.told, choice.tied), 'and')}{why}."
    if choice.behind:
        yield f"Slower than {best}, yet faster than no draft: {listed(map(choice.told, choice.behind), 'and')}."
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
            lengths = listed([f"{k:g}" for k in compared_lengths(results, row)], "and")
            among = f"Of {lengths} draft tokens a step, all that were compared," if lengths else "Of what was compared,"
            yield f"{among} {row.value:g} does best for {variant_label(variant)}{close}; it was served with {used}."


def compared_lengths(results: Results, best: Row) -> list[float]:
    """The draft lengths among which a best one was found."""
    rows = (r for r in results.rows if (r.base, r.variant, r.benchmark) == ("step_ms", best.variant, best.benchmark))
    return sorted(at for row in rows if (at := parse(row.metric).at) is not None)


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
