"""Verdicts on a run against its baseline: a regression is a loss whose whole interval lies below zero.

Called by `python -m reports.gate`. The intervals are wide enough that all verdicts of one gate together raise a false
alarm at most once in 100 runs (Bonferroni). Half of that chance goes to the verdicts that see most, one for each draft:
its acceptance over all prompts. The other half is shared by the rest. Rates per position explain a loss of the length,
which is their sum: they raise no alarm of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from reports.baseline import Snapshot, Variant
from reports.collect import BASE
from reports.gate_intervals import Change, ratio_change, share_change, speedup_change

PASS, BETTER, REGRESSION = "pass", "better", "regression"
CANNOT, SKIPPED = "cannot judge", "not compared"
ALARMS = 0.01  # chance of a false alarm in a run of which nothing got worse
EVERYTHING = "all prompts"
EXPLAINING = 0.95  # confidence of the intervals per position
COMMON_MIN = 0.9  # with fewer of the baseline's prompts the pairs may be a choice
KINDS = ("strict", "flexible")
MACHINE = ("cpu", "cores", "gpus")  # what speed depends on; memory is a little different on every start


@dataclass(frozen=True)
class Tolerances:
    """Relative losses that are none, however sure: of accepted tokens per step, and of the speed-up.

    A retrained draft differs from the one before by its training's own noise, which no interval over prompts can know.
    """

    acceptance: float = 0.03
    retrained: float = 0.05
    speedup: float = 0.05


@dataclass(frozen=True)
class Verdict:
    """One line of the gate. `change` and its interval are relative for acceptance and speed, shares for accuracy."""

    variant: str
    metric: str
    benchmark: str
    verdict: str
    before: float | None = None
    after: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    note: str = ""


def different(before: Snapshot, after: Snapshot) -> list[Verdict]:
    """Why the two runs are not of the same thing; empty where they are."""
    fields = ("reproduction", "scale", "verifier", "request")
    return [
        Verdict("run", f"same {name}", "", CANNOT, note=f"{name} was {_short(old)}, now {_short(new)}")
        for name in fields
        if (old := getattr(before, name)) != (new := getattr(after, name))
    ]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def judge(before: Snapshot, after: Snapshot, tolerances: Tolerances | None = None) -> list[Verdict]:
    """Every verdict on `after` against the baseline `before`."""
    if told := different(before, after):
        return told
    confidences, found = _confidences(before), []
    for name, old in before.variants.items():
        new = after.variants.get(name)
        if new is None:
            found.append(Verdict(name, "measured", "", CANNOT, note="not measured any more"))
            continue
        pair = Pair(name, old, new, before, after, confidences, tolerances or Tolerances())
        found += [*pair.acceptance(), *pair.accuracy(), *pair.faults(), *pair.speedups()]
    fresh = after.variants.keys() - before.variants.keys()
    return [*found, *(Verdict(name, "measured", "", SKIPPED, note="not in the baseline") for name in sorted(fresh))]


@dataclass(frozen=True)
class Confidences:
    """Of the interval of a draft's acceptance over all prompts, and of every other one."""

    everything: float
    other: float


def _confidences(before: Snapshot) -> Confidences:
    """Intervals such that a false alarm has the chance `ALARMS`, all verdicts that an interval decides together."""
    drafted = sum(bool(each.steps) for each in before.variants.values())
    others = sum(
        len(each.steps) + len(KINDS) * len(each.accuracy) + (len(each.latency) if name != BASE else 0)
        for name, each in before.variants.items()
    )
    # Only one of the two ends of an interval can raise an alarm: so much lies beyond each.
    everything, other = (ALARMS / 2 / max(count, 1) for count in (drafted, others))
    return Confidences(1 - 2 * everything, 1 - 2 * other)


def _tops(histogram: Sequence[int], position: int) -> int:
    """Verify steps in which the draft at `position` (from 0) was accepted."""
    return sum(histogram[position + 1 :])


def _accepted(histogram: Sequence[int]) -> int:
    return sum(number * count for number, count in enumerate(histogram))


Histograms = list[Sequence[int]]


@dataclass(frozen=True)
class Pair:
    """One variant in both runs."""

    name: str
    old: Variant
    new: Variant
    before: Snapshot
    after: Snapshot
    confidences: Confidences
    tolerances: Tolerances

    def _verdict(self, metric: str, benchmark: str, change: Change, tolerance: float, note: str = "") -> Verdict:
        """`change` in the unit of `tolerance`; lost where all of its interval is, and more than is tolerated."""
        verdict = PASS
        if change.low is None or change.high is None:
            verdict, note = (CANNOT if benchmark in ("", EVERYTHING) else SKIPPED), "too few in common for a verdict"
        elif change.high < 0 and change.change < -tolerance:
            verdict = REGRESSION
        elif change.low > 0:
            verdict = BETTER
        return Verdict(
            self.name, metric, benchmark, verdict, change.before, change.after, change.change, change.low, change.high,
            change.n, note,
        )  # fmt: skip

    def _cannot(self, metric: str, benchmark: str, note: str) -> Verdict:
        return Verdict(self.name, metric, benchmark, CANNOT, note=note)

    def _retrained(self) -> bool:
        hashes = self.old.draft_sha256, self.new.draft_sha256
        return None not in hashes and hashes[0] != hashes[1]

    def _paired(self, source: str) -> tuple[Histograms, Histograms] | str:
        """The histograms of the prompts that both runs answered, in one order; or why there are none."""
        old, new = self.old.steps[source], self.new.steps.get(source, {})
        prompts = self.before.prompts.get(source, {}), self.after.prompts.get(source, {})
        common = sorted(old.keys() & new.keys())
        if any(prompts[0].get(key) != prompts[1].get(key) for key in common):
            return "other prompts under the same ids"
        if len(common) < COMMON_MIN * len(old):
            return f"{len(common)} of the baseline's {len(old)} prompts were answered"
        return [old[key] for key in common], [new[key] for key in common]

    def acceptance(self) -> Iterator[Verdict]:
        """Acceptance lengths of each benchmark and of all together, and what explains a loss."""
        if self.old.num_speculative_tokens != self.new.num_speculative_tokens:
            kinds = self.old.num_speculative_tokens, self.new.num_speculative_tokens
            if self.old.steps:
                yield self._cannot("acceptance_length", "", f"{kinds[0]} draft tokens a step before, {kinds[1]} now")
            return
        paired: dict[str, tuple[Histograms, Histograms]] = {}
        for source in self.old.steps:
            pairs = self._paired(source)
            if isinstance(pairs, str):
                yield self._cannot("acceptance_length", source, pairs)
            else:
                paired[source] = pairs
        if not paired:
            return
        together = [[each for pair in paired.values() for each in pair[side]] for side in (0, 1)]
        lengths = [self._length(EVERYTHING, together[0], together[1], self.confidences.everything)]
        lengths += [self._length(source, *pair, self.confidences.other) for source, pair in paired.items()]
        yield from lengths
        moved = {each.verdict for each in lengths} & {REGRESSION, BETTER}
        for source, pair in paired.items():
            if sum(map(sum, pair[0])) and sum(map(sum, pair[1])):
                positions = range(self.old.num_speculative_tokens)
                yield from (self._position(source, *pair, at, moved) for at in positions)

    def _rate(self, old: Histograms, new: Histograms, tops: list[list[int]], confidence: float) -> Change:
        change = ratio_change((tops[0], list(map(sum, old))), (tops[1], list(map(sum, new))), confidence)
        if not change.before:  # nothing to lose: what was gained is given in accepted tokens per step
            return change
        relative = [None if each is None else each / change.before for each in (change.change, change.low, change.high)]
        return Change(change.before, change.after, relative[0] or 0.0, relative[1], relative[2], change.n)

    def _length(self, source: str, old: Histograms, new: Histograms, confidence: float) -> Verdict:
        if not sum(map(sum, old)):
            note = "nothing was drafted in the baseline"
            return Verdict(self.name, "acceptance_length", source, SKIPPED, note=note)
        if not sum(map(sum, new)):
            return self._cannot("acceptance_length", source, "nothing was drafted")
        tolerance = self.tolerances.retrained if self._retrained() else self.tolerances.acceptance
        tops = [[_accepted(each) for each in side] for side in (old, new)]
        rate = self._rate(old, new, tops, confidence)
        change = Change(1 + rate.before, 1 + rate.after, rate.change, rate.low, rate.high, rate.n)
        note = "retrained draft" if self._retrained() else ""
        return self._verdict("acceptance_length", source, change, tolerance, note)

    def _position(self, source: str, old: Histograms, new: Histograms, at: int, moved: set[str]) -> Verdict:
        """The rate at one position; it counts as lost or gained only where a length is."""
        tops = [[_tops(each, at) for each in side] for side in (old, new)]
        found = self._verdict(f"acceptance_rate_position_{at + 1}", source, self._rate(old, new, tops, EXPLAINING), 0.0)
        if found.verdict in (REGRESSION, BETTER) and found.verdict not in moved:
            found = replace(found, verdict=PASS)
        return found

    def accuracy(self) -> Iterator[Verdict]:
        """Accuracy on the same problems, in both forms."""
        for task, before in self.old.accuracy.items():
            after = self.new.accuracy.get(task)
            if after is None:
                note = self.new.absent.get(f"accuracy {task}", "not run")
                yield self._cannot("accuracy_flexible", task, note)
                continue
            if len(before.keys() & after.keys()) < COMMON_MIN * len(before):
                yield self._cannot("accuracy_flexible", task, "other problems")
                continue
            for at, kind in enumerate(KINDS):
                scores = [{key: each[at] for key, each in side.items()} for side in (before, after)]
                change = share_change(scores[0], scores[1], self.confidences.other)
                yield self._verdict(f"accuracy_{kind}", task, change, 0.0)

    def faults(self) -> Iterator[Verdict]:
        """Replies that differ from the verifier's own: a count, so that more of them is a regression."""
        if self.old.faults is None:
            return
        if self.new.faults is None:
            yield self._cannot("output_match_faults", "", "not run")
            return
        verdict = REGRESSION if self.new.faults > self.old.faults else PASS
        gained = self.new.faults - self.old.faults
        yield Verdict(self.name, "output_match_faults", "", verdict, self.old.faults, self.new.faults, gained)

    def speedups(self) -> Iterator[Verdict]:
        """Speed-up over the base at each concurrency; another machine has another one."""
        for level in self.old.latency if self.name != BASE else ():
            metric = f"speedup_c{level}"
            if any(self.before.hardware.get(part) != self.after.hardware.get(part) for part in MACHINE):
                yield Verdict(self.name, metric, "", SKIPPED, note="measured on other hardware")
                continue
            if doubt := self.old.absent.get(metric) or self.new.absent.get(metric):
                yield Verdict(self.name, metric, "", SKIPPED, note=doubt)
                continue
            sides = [self._columns(self.before, level), self._columns(self.after, level)]
            if not all(sides):
                yield self._cannot(metric, "", self.new.absent.get(f"latency c{level}", "no request in common"))
                continue
            change = speedup_change(sides[0], sides[1], self.confidences.other)
            yield self._verdict(metric, "", change, self.tolerances.speedup)

    def _columns(self, run: Snapshot, level: str) -> list[list[float]]:
        """Tokens and seconds of the variant and of the base, for the requests that all four loads answered."""
        loads = [side.variants[name].latency.get(level, {}) for side in (self.before, self.after)
                 for name in (self.name, BASE)]  # fmt: skip
        common = sorted(set.intersection(*(set(load) for load in loads)))
        own, base = (run.variants[name].latency.get(level, {}) for name in (self.name, BASE))
        return [[load[key][at] for key in common] for load in (own, base) for at in (0, 1)] if common else []


def outcome(verdicts: Sequence[Verdict]) -> str:
    """The verdict on the whole run: a regression is sure even where something else could not be judged."""
    found = {each.verdict for each in verdicts}
    if REGRESSION in found:
        return REGRESSION
    return CANNOT if CANNOT in found or not found & {PASS, BETTER} else PASS
