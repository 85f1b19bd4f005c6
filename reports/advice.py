"""The answers on top of the report: which draft at which load, is the output still the verifier's, how far from others.

Called by `reports.page`. Every sentence follows from rows and their intervals: a draft is called faster when its whole
interval lies above 1, and two drafts whose intervals overlap are not told apart.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from reports.beside import Beside, all_beside, all_elsewhere, theirs_written
from reports.collect import BASE, Run
from reports.metrics import described, spread, written
from reports.names import benchmark_label, listed, quantisation, scale_label, variant_label
from reports.rows import Results, Row, machine, share_left_open

SHOWN_PUBLISHED = 3


@dataclass(frozen=True)
class Answer:
    """A question, its answer in a few words, and the figures behind it. `tone` is `met`, `missed` or nothing."""

    question: str
    verdict: str
    sentences: list[str]
    tone: str = ""


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


def is_sound(run: Run, variant: str) -> bool:
    """No reply of the variant departs from what the verifier clearly prefers."""
    return variant in run.match and run.match[variant].faults == 0


def _low(row: Row) -> float:
    return row.value if row.low is None else row.low


def _high(row: Row) -> float:
    return row.value if row.high is None else row.high


def _usable(row: Row | None) -> bool:
    """A value that may be compared: a note beside one says that it may not."""
    return row is not None and row.value is not None and not row.note


def overlap(a: Row, b: Row) -> bool:
    """Whether the intervals of two figures have a point in common."""
    return _low(a) <= _high(b) and _low(b) <= _high(a)


def choose(run: Run, results: Results, level: int) -> Choice:
    """The fastest sound draft at a load, with those that its interval does not tell apart from it.

    Only on the original verifier: a quantised one is another model, whatever its speed.
    """
    metric, benchmark = f"speedup_c{level}", run.reproduction.evaluate.latency.benchmark
    found = {v: results.get(v, metric, benchmark) for v in run.drafted if is_sound(run, v) and not quantisation(v)}
    rows = {variant: row for variant, row in found.items() if _usable(row)}
    faster = sorted((v for v, row in rows.items() if _low(row) > 1), key=lambda v: -rows[v].value)
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
    return [*deploy, _lossless(run, results), _published(run, results)]


def _figure(row: Row) -> str:
    """`2.31× (2.20 to 2.42)`."""
    interval = spread(row.metric, row.low, row.high)
    return written(row.metric, row.value) + (f" ({interval})" if interval else ", without an interval")


def _deploy(run: Run, results: Results, choice: Choice) -> Answer:
    most = len(levels(run)) > 1 and choice.level == levels(run)[-1]
    question = f"Which draft with {at_once(choice.level)}{', the most measured here' if most else ''}?"
    left_out = list(_left_out(run, results, choice))
    if choice.best is None:
        return Answer(question, "none", [*_none_faster(run, choice), *left_out], "missed" if choice.rows else "")
    sentences = [_best(run, results, choice), *_apart(choice), *left_out]
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
        f"{_figure(row)}, over {row.n} requests{place}."
    )


def _apart(choice: Choice) -> Iterator[str]:
    best = variant_label(choice.best)
    if choice.tied:
        told = [f"{variant_label(variant)} with {_figure(choice.rows[variant])}" for variant in choice.tied]
        verb = "is" if len(told) == 1 else "are"
        yield f"{listed(told, 'and')} {verb} not told apart from {best}: the intervals overlap."
    if choice.behind:
        told = [f"{variant_label(variant)} with {_figure(choice.rows[variant])}" for variant in choice.behind]
        yield f"Slower than {best} beyond the intervals, yet faster than no draft: {listed(told, 'and')}."
    faster = {choice.best, *choice.tied, *choice.behind}
    unsure = [v for v, row in choice.rows.items() if v not in faster and _high(row) >= 1]
    slower = [v for v, row in choice.rows.items() if v not in faster and _high(row) < 1]
    for names, head in ((unsure, "No sure gain"), (slower, "Slower than no draft")):
        if names:
            yield f"{head}: {listed([f'{variant_label(v)} with {_figure(choice.rows[v])}' for v in names], 'and')}."


def _none_faster(run: Run, choice: Choice) -> Iterator[str]:
    if not choice.rows:
        yield "No draft without faults has a speed-up at this load; see “Not run”."
        return
    place = machine(run.provenance[f"measured/{BASE}/latency.json"])
    slower = all(_high(row) < 1 for row in choice.rows.values())
    told = "every draft is slower than none" if slower else "no draft is surely faster than none"
    best = max(choice.rows, key=lambda variant: choice.rows[variant].value)
    yield f"Serve without a draft there: {told}, on {place}."
    yield f"The best is {variant_label(best)} with {_figure(choice.rows[best])}."


def _left_out(run: Run, results: Results, choice: Choice) -> Iterator[str]:
    """Faulty drafts that look faster, and drafts without a figure."""
    metric, benchmark = f"speedup_c{choice.level}", run.reproduction.evaluate.latency.benchmark
    reasons: dict[str, list[str]] = {}
    for variant in run.drafted:
        row = results.get(variant, metric, benchmark)
        shown = f"{variant_label(variant)} with {_figure(row)}" if row and row.value else variant_label(variant)
        if not _usable(row):
            reasons.setdefault(row.note if row else "not run: no such measurement", []).append(shown)
        elif not is_sound(run, variant):
            reasons.setdefault("because it changes the output", []).append(shown)
    for reason, told in reasons.items():
        yield f"Left out: {listed(told, 'and')}, {reason}."


def _lossless(run: Run, results: Results) -> Answer:
    question = "Is the output still the verifier's own?"
    compared = {variant: match for variant, match in run.match.items() if match.total}
    sampled = [row for row in results.rows if row.base == "sampling_p"]
    if not compared:
        return Answer(question, "not known", ["No reply was compared; see “Not run”."])
    faulty = [variant for variant, match in compared.items() if match.faults]
    sentences = [*_greedy(run, faulty), *_accuracy(run, results), *_sampling(run, sampled)]
    if faulty:
        verdict = f"not with {listed(map(variant_label, faulty), 'and')}"
        return Answer(question, verdict, sentences, "missed")
    return Answer(question, "yes, as far as was tested", sentences, "met")


def _greedy(run: Run, faulty: list[str]) -> Iterator[str]:
    for variant in faulty:
        match = run.match[variant]
        verb = "departs" if match.faults == 1 else "depart"
        yield (
            f"Do not deploy {variant_label(variant)}: {match.faults} of {match.total} greedy replies {verb} from what "
            "the verifier clearly prefers."
        )
    sound = [match for variant, match in run.match.items() if variant not in faulty and match.total]
    if not sound:
        return
    shares = sorted({match.exact for match in sound})
    same = f"{shares[0]} to {shares[-1]}" if len(shares) > 1 else f"{shares[0]}"
    total, left = min(match.total for match in sound), max(share_left_open(match.total) for match in sound)
    others = " of the other drafts" if faulty else ""
    rest = " The others part where its two likeliest tokens nearly tie." if shares[0] < total else ""
    yield (
        f"No greedy reply{others} departs from what the verifier clearly prefers, and {same} of {total} are identical "
        f"token by token.{rest} So many replies without a fault leave room for a share of at most {left:.1%} (95%)."
    )


def _accuracy(run: Run, results: Results) -> Iterator[str]:
    metric = f"accuracy_{run.reproduction.gates.accuracy_extraction}_difference"
    for task in results.measured(metric):
        found = {variant: results.get(variant, metric, task) for variant in run.drafted}
        rows = {variant: row for variant, row in found.items() if row is not None and row.value is not None}
        beyond = {variant: row for variant, row in rows.items() if row.low > 0 or row.high < 0}
        label, n = benchmark_label(task), min(row.n for row in rows.values())
        for variant, row in beyond.items():
            yield f"Accuracy on {label} changes with {variant_label(variant)} by {_figure(row)} points: beyond chance."
        rest = [row for variant, row in rows.items() if variant not in beyond]
        if rest:
            yield _unchanged(rest, n, label, "the other drafts" if beyond else "the drafts")


def _unchanged(rows: list[Row], n: int, label: str, who: str) -> str:
    """The changes whose paired intervals hold zero."""
    least, most = (written(rows[0].metric, edge(row.value for row in rows)) for edge in (min, max))
    change = least if least == most else f"{least} to {most}"
    widest = max(rows, key=lambda row: row.high - row.low)
    return (
        f"On {n} {label} {who} change accuracy by {change} points; every paired interval holds zero, the widest is "
        f"{spread(widest.metric, widest.low, widest.high)}."
    )


def _sampling(run: Run, rows: list[Row]) -> Iterator[str]:
    having = [row for row in rows if row.value is not None]
    if not having:
        yield "At temperatures above 0: not run, so nothing is said about sampling."
        return
    least = min(having, key=lambda row: row.value)
    variants = dict.fromkeys(row.variant for row in having)
    yield (
        f"At temperatures above 0, sampled tokens were tested with {listed(map(variant_label, variants), 'and')}: the "
        f"smallest p-value is {written(least.metric, least.value)} ({variant_label(least.variant)})."
    )


def _published(run: Run, results: Results) -> Answer:
    question = "How far are the figures from published ones?"
    if not run.published:
        told = f"Nobody has published figures for drafts of {run.reproduction.verifier.id} that we know of."
        return Answer(question, "there are none for this verifier", [told, *_orientation(run, results)])
    beside = all_beside(run, results)
    ours = [each for each in beside if each.ratio is not None]
    if not ours:
        reasons = dict.fromkeys(each.absent for each in beside)
        why = f": {listed(list(reasons)[:SHOWN_PUBLISHED], 'and')}" if reasons else ""
        told = f"None of the {len(run.published)} published figures has a counterpart here{why}."
        return Answer(question, "nothing to compare", [told])
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
    told = []
    found = [each for each in found if each.benchmark == benchmark]
    for algorithm in dict.fromkeys(each.algorithm for each in found):
        lengths = [length for each in found if each.algorithm == algorithm for length in each.lengths]
        told.append(f"{variant_label(algorithm)} {min(lengths):.2f} to {max(lengths):.2f}")
    yield (
        f"For the order of size, acceptance lengths published for other verifiers on {benchmark_label(benchmark)}: "
        f"{listed(told, 'and')}."
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
        f"{_figure(found.ours)} here, {theirs_written(found)} published, {found.verdict}.{why}"
    )
