"""Published figures beside ours: which of our rows answers to each, how far apart they are, and what differs.

Called by `reports.tables` and `reports.advice`. What differs is read off both sides' stated conditions; nothing is
guessed, and a condition that the source does not state is called that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from reports.collect import Run
from reports.formats import Published
from reports.names import benchmark_label
from reports.rows import Results, Row, machine
from reports.wording import duration, written

ACCURACY, FLOORS = "_accuracy", ("test_threshold",)
GPU_HOURS = "training_gpu_hours"
# Published costs of a training stand under the benchmark `training`; ours belong to no benchmark.
SPELLINGS = {"mtbench": "mt_bench", "mt-bench": "mt_bench", "training": ""}


@dataclass(frozen=True)
class Beside:
    """One published figure and ours. `absent` says why there is no row; `differs` what is not alike."""

    item: Published
    ours: Row | None
    absent: str = ""
    differs: list[str] = field(default_factory=list)

    @property
    def value(self) -> float | None:
        """The published figure; of several by position, the first."""
        first = self.item.value[0] if isinstance(self.item.value, list) and self.item.value else self.item.value
        return float(first) if isinstance(first, int | float) else None

    @property
    def ratio(self) -> tuple[float, float | None, float | None] | None:
        """Ours over theirs with our interval; None where either is no single positive number."""
        if self.ours is None or self.ours.value is None or not self.value or self.value < 0:
            return None
        low, high = self.ours.low, self.ours.high
        return self.ours.value / self.value, low and low / self.value, high and high / self.value

    @property
    def verdict(self) -> str:
        """Where the published figure lies: `within our interval`, `12% below` (ours), `8% above`."""
        if self.ratio is None:
            return ""
        if self.ours.low is not None and self.ours.low <= self.value <= self.ours.high:
            return "within our interval"
        change = self.ratio[0] - 1
        return f"{abs(change):.0%} {'above' if change > 0 else 'below'}"


def all_beside(run: Run, results: Results) -> list[Beside]:
    """Every published figure for an algorithm of this run or for no draft, those that ours answer to first."""
    kept = [item for item in run.published if item.algorithm in run.reproduction.variants]
    found = [_beside(run, results, item) for item in kept]
    return sorted(found, key=lambda each: each.ours is None)


def stated(item: Published) -> dict[str, Any]:
    """The stated conditions of a published figure, with draft, draft tokens (`k`) and temperature among them."""
    held = dict(item.conditions) if isinstance(item.conditions, dict) else {}
    if item.conditions and not held:
        held = {"": item.conditions}
    named = {"draft": item.draft, "k": item.k, "temperature": item.temperature}
    return {key: value for key, value in (named | held).items() if value is not None}


def benchmark_of(item: Published) -> str:
    """Our name of the benchmark of a published figure."""
    name = item.benchmark.lower()
    return SPELLINGS.get(name, name)


def _metric_of(run: Run, item: Published) -> str | None:
    """Our name of the metric; None for what we do not measure."""
    held = stated(item)
    if item.metric in ("acceptance_length", "acceptance_length_threshold"):
        return "acceptance_length"
    if item.metric in ("acceptance_rate_first_position", "acceptance_rate_per_position"):
        return "acceptance_rate_position_1"
    if item.metric == GPU_HOURS:
        return GPU_HOURS
    if item.metric == "speedup":
        levels = sorted(run.latency[run.reproduction.variants[0]].concurrency, key=int)
        level = held.get("concurrency", held.get("batch_size"))
        return f"speedup_c{level or levels[0]}"
    if item.metric.removesuffix("_threshold").endswith(ACCURACY):
        return "accuracy_flexible"
    return None


def _beside(run: Run, results: Results, item: Published) -> Beside:
    metric, benchmark = _metric_of(run, item), benchmark_of(item)
    if metric is None:
        return Beside(item, None, "not measured here in this form")
    row = results.get(item.algorithm, metric, benchmark)
    if row is not None and row.value is not None:
        return Beside(item, row, differs=list(_differs(run, item, row)))
    return Beside(item, None, row.note if row else f"not run: {_why_absent(run, item, metric, benchmark)}")


def _why_absent(run: Run, item: Published, metric: str, benchmark: str) -> str:
    if metric == GPU_HOURS:
        took = run.training.get(item.algorithm)
        where = machine(run.provenance["capture/manifest.json"])
        return f"trained in {duration(took.seconds)} on {where}" if took else "not trained here"
    if benchmark not in {source.source for source in run.sources.sources}:
        return f"{benchmark_label(item.benchmark)} is no benchmark of this reproduction"
    level = metric.rpartition("_c")[2]
    return f"concurrency {level} was not measured" if metric.startswith("speedup") else "no such figure"


def _differs(run: Run, item: Published, row: Row) -> Iterator[str]:
    """What is not alike on the two sides, gravest first."""
    held = stated(item)
    ours, theirs = run.reproduction.verifier.id, item.verifier
    if run.scale != "full":
        yield f"a {'miniature' if run.scale == 'mini' else 'smoke run'} here"
    elif theirs and theirs.rpartition("/")[2].lower() != ours.rpartition("/")[2].lower():
        yield f"verifier {theirs} there"
    if item.quality in FLOORS:
        yield "a floor of a test there, not a measurement"
    if item.algorithm in run.training:
        yield f"draft {held.get('draft', 'not named')} there, ours learnt from {run.manifest.rows:,} replies"
    if row.base in ("acceptance_length", "speedup", "acceptance_rate_position"):
        yield from _decoding(run, item, held)
    if row.base in ("speedup", GPU_HOURS):
        yield f"{held.get('hardware', 'hardware not stated')} there, {machine(run.provenance['capture/manifest.json'])}"


def _decoding(run: Run, item: Published, held: dict[str, Any]) -> Iterator[str]:
    drafted = run.acceptance[item.algorithm].num_speculative_tokens if item.algorithm in run.acceptance else 0
    if "k" not in held:
        yield "draft tokens per step not stated there"
    elif held["k"] != drafted:
        yield f"{held['k']} draft tokens per step there, {drafted} here"
    if "temperature" not in held:
        yield "temperature not stated there"
    elif held["temperature"]:
        yield f"temperature {held['temperature']:g} there, greedy here"
    if held.get("drafting"):
        yield f"{held['drafting']} there"
    if held.get("thinking") == "on":
        yield "thinking on there"
    engine, most = str(held.get("engine", "")), held.get("max_output_tokens")
    if engine and not engine.lower().startswith("vllm"):
        yield f"{engine} there, vLLM here"
    limit = run.reproduction.evaluate.acceptance.max_new_tokens
    if most and most != limit:
        yield f"up to {most} tokens a reply there, {limit} here"


def theirs_written(found: Beside) -> str:
    """The published value as people read it; several values with strokes."""
    values = found.item.value if isinstance(found.item.value, list) else [found.item.value]
    known = found.ours is not None and all(isinstance(value, int | float) for value in values)
    return " / ".join(written(found.ours.metric, value) if known else str(value) for value in values)


@dataclass(frozen=True)
class Elsewhere:
    """Published acceptance lengths of one algorithm on one benchmark, for the verifier of another reproduction."""

    reproduction: str
    algorithm: str
    benchmark: str
    lengths: list[float]
    sources: list[str]


def all_elsewhere(run: Run) -> list[Elsewhere]:
    """Acceptance lengths of this run's algorithms that are published for other verifiers."""
    found: dict[tuple[str, str, str], list[Published]] = {}
    for reproduction, items in run.elsewhere.items():
        for item in items:
            known = item.algorithm in run.reproduction.algorithms and isinstance(item.value, int | float)
            if known and item.metric == "acceptance_length":
                found.setdefault((reproduction, item.algorithm, benchmark_of(item)), []).append(item)
    return [
        Elsewhere(*key, sorted(float(item.value) for item in items), list(dict.fromkeys(item.source for item in items)))
        for key, items in sorted(found.items())
    ]
