"""Whether the output stays the verifier's own: greedy replies, sampled ones, accuracy. Used by `reports.advice`."""

from collections.abc import Iterator

from reports.answer import Answer, in_words
from reports.collect import Run
from reports.names import benchmark_label, listed, variant_label
from reports.rows import Results, Row, share_left_open
from reports.wording import spread, written


def is_sound(run: Run, variant: str) -> bool:
    """No reply departs from what the verifier clearly prefers, and no test says that sampled ones are changed."""
    sampled = run.sampled.get(variant)
    return (
        variant in run.match and run.match[variant].faults == 0 and (sampled is None or sampled.lossless is not False)
    )


def lossless(run: Run, results: Results) -> Answer:
    """The answer that follows from every check of the output."""
    question = "Is the output still the verifier's own?"
    compared = {variant: match for variant, match in run.match.items() if match.total}
    if not compared:
        return Answer(question, "not known", ["No reply was compared; see “Not run”."])
    faulty = [variant for variant, match in compared.items() if match.faults]
    unsound = [variant for variant in compared if not is_sound(run, variant)]
    sentences = [*_greedy(run, faulty), *_sampling(run, results), *_accuracy(run, results)]
    if unsound:
        verdict = f"not with {listed(map(variant_label, unsound), 'and')}"
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
    same = f"{shares[0]} to {shares[-1]}" if len(shares) > 1 else f"with each draft {shares[0]}"
    total, left = min(match.total for match in sound), max(share_left_open(match.total) for match in sound)
    others = " of the other drafts" if faulty else ""
    rest = " The others part where its two likeliest tokens nearly tie." if shares[0] < total else ""
    if same_prompt(run):
        rest = " The one other is the same prompt every time, and parts where its two likeliest tokens nearly tie."
    yield (
        f"No greedy reply{others} departs from what the verifier clearly prefers, and {same} of {total} are identical "
        f"token by token.{rest} So many replies without a fault leave room for a share of at most {left:.1%} (95%)."
    )


def same_prompt(run: Run) -> str | None:
    """The one prompt whose reply differs with every draft; None where replies to several do, or to none."""
    apart = [[found.id for found in match.differences] for match in run.match.values() if match.total]
    return apart[0][0] if apart and len(apart[0]) == 1 and all(ids == apart[0] for ids in apart) else None


def _sampling(run: Run, results: Results) -> Iterator[str]:
    tested = {variant: file for variant, file in run.sampled.items() if file.lossless is not None}
    if not tested:
        yield "At temperatures above 0: not run, so nothing is said about sampled replies."
        return
    for variant, file in tested.items():
        if not file.lossless:
            yield f"Do not deploy {variant_label(variant)} at a temperature above 0: {file.found}."
    held = [variant for variant, file in tested.items() if file.lossless]
    if not held:
        return
    rows = [row for variant in held if (row := results.get(variant, "sampling_p")) and row.value is not None]
    biases = [bias for variant in held if (bias := _least_bias(results, variant)) is not None]
    least = min((row.value for row in rows), default=None)
    smallest = f" (smallest p-value {written('sampling_p', least)})" if least is not None else ""
    power = f" The likeliest token in place of {max(biases):.1%} of them would have shown (9 in 10)." if biases else ""
    temperatures = listed(dict.fromkeys(f"{tested[variant].temperature:g}" for variant in held), "and")
    fewest = min((row.n or 0 for row in rows), default=0)
    yield (
        f"At temperature {temperatures}, the sampled tokens of {listed(map(variant_label, held), 'and')} are "
        f"distributed like the verifier's as far as {fewest:,} tokens each can tell{smallest}.{power}"
    )


def _least_bias(results: Results, variant: str) -> float | None:
    """The bias that the test of one variant would find: that of all its tokens together, or of the kind with most."""
    rows = (row for row in results.rows if row.base == "sampling_detectable_bias" and row.variant == variant)
    return min((row.value for row in rows if row.value is not None), default=None)


def _accuracy(run: Run, results: Results) -> Iterator[str]:
    metric = f"accuracy_{run.reproduction.gates.accuracy_extraction}_difference"
    for task in results.measured(metric):
        found = {variant: results.get(variant, metric, task) for variant in run.drafted}
        rows = {variant: row for variant, row in found.items() if row is not None and row.value is not None}
        beyond = {variant: row for variant, row in rows.items() if row.low > 0 or row.high < 0}
        label, n = benchmark_label(task), min(row.n for row in rows.values())
        for variant, row in beyond.items():
            yield f"Accuracy on {label} changes with {variant_label(variant)} by {in_words(row)} points: beyond chance."
        rest = [row for variant, row in rows.items() if variant not in beyond]
        if rest and not beyond and not any(row.value for row in rest) and _all_equal(run, task, n):
            yield (
                f"Accuracy on {n} {label} is the same and no further evidence: all greedy replies to them are "
                "identical token by token."
            )
        elif rest:
            yield _unchanged(rest, n, label, "the other drafts" if beyond else "the drafts")


def _all_equal(run: Run, task: str, n: int) -> bool:
    shares = [match.sources.get(task) for match in run.match.values()]
    return all(share is not None and share.exact_share == 1 and share.total >= n for share in shares)


def _unchanged(rows: list[Row], n: int, label: str, who: str) -> str:
    """The changes whose paired intervals hold zero."""
    least, most = (written(rows[0].metric, edge(row.value for row in rows)) for edge in (min, max))
    change = least if least == most else f"{least} to {most}"
    widest = max(rows, key=lambda row: row.high - row.low)
    return (
        f"On {n} {label} {who} change accuracy by {change} points; every paired interval holds zero, the widest is "
        f"{spread(widest.metric, widest.low, widest.high)}."
    )
