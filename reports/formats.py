"""The result files of a run as closed types: what `reports.collect` reads, field by field.

Only the fields that a report uses are named; a file may hold more. Shares lie in [0, 1]; K = draft tokens per step.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Part(BaseModel):
    """Part of a result file: typed, and tolerant of fields that no report uses."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Hardware(Part):
    """The machine of a result."""

    cpu: str
    cores: int
    memory_gib: float
    gpus: list[str]


class Provenance(Part):
    """Where a result comes from; see `harness.provenance.collect`. Kept in full, so further fields are too."""

    model_config = ConfigDict(extra="allow", frozen=True)

    commit: str | None
    dirty: bool | None
    versions: dict[str, str]
    hardware: Hardware
    seed: int | None
    scale: str
    settings_sha256: str
    finished_at: str


class MeanOfPrompts(Part):
    """Mean over prompts of each reply's own acceptance length."""

    acceptance_length_mean_of_prompts: float
    low: float | None = None
    high: float | None = None
    prompts: int


class Category(Part):
    """Pooled acceptance length of one category of a source."""

    acceptance_length_pooled: float
    low: float | None = None
    high: float | None = None
    drafts: int


class Benchmark(Part):
    """Acceptance on one source. Lengths count the bonus token; None where nothing was drafted.

    `accepted_past_end` counts tokens of verify steps behind the end of replies, the bonus token among them.
    """

    drafts: int
    draft_tokens: int
    accepted: int
    accepted_per_position: list[int]
    acceptance_length_pooled: float | None
    low: float | None = None
    high: float | None = None
    acceptance_rate_per_position: list[float | None]
    emitted_tokens_per_step: float | None
    emitted_low: float | None = None
    emitted_high: float | None = None
    drafted_step_share: float | None = None
    accepted_past_end: int | None = None
    past_end_matters: bool = False
    prompts: int
    mean_of_prompts: MeanOfPrompts | None = None
    categories: dict[str, Category] = {}

    @property
    def steps(self) -> int:
        """All verify steps, those without a draft included; `drafts` are those with one."""
        return round(self.drafts / self.drafted_step_share) if self.drafted_step_share else self.drafts


class AcceptanceFile(Part):
    """measured/<variant>/acceptance.json; no benchmarks without speculation."""

    num_speculative_tokens: int
    benchmarks: dict[str, Benchmark]
    failed: list[dict[str, Any]] = []
    identity_checks: dict[str, dict[str, bool]] = {}


class Problem(Part):
    """One scored problem: 1.0 or true where the answer was right."""

    id: str | int
    strict: float
    flexible: float


class Score(Part):
    """One task's scores, or the reason why there are none."""

    not_run: str | None = None
    strict: float | None = None
    strict_low: float | None = None
    strict_high: float | None = None
    flexible: float | None = None
    flexible_low: float | None = None
    flexible_high: float | None = None
    n: int = 0
    thinking_only: int = 0
    empty: int = 0
    cut: int = 0
    failed: int = 0
    invalid: bool = False
    per_problem: list[Problem] = []


class AccuracyFile(Part):
    """measured/<variant>/accuracy.json."""

    tasks: dict[str, Score]
    versions: dict[str, Any] = {}


class Spread(Part):
    """Mean and percentiles over requests, in milliseconds or seconds as the field's name says."""

    mean: float | None
    p50: float | None
    p95: float | None


class Rate(Part):
    """A rate with its 95% interval."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Request(Part):
    """One measured request."""

    id: str | int
    output_tokens: float
    latency_s: float


class KernelTimes(Part):
    """Time of a fixed piece of work before and after a load, in milliseconds."""

    before: float
    after: float


class Machine(Part):
    """What the machine did while a load was timed; shares are of all cores' time."""

    kernel_ms: KernelTimes
    others_cpu_share: float


class Load(Part):
    """Load at one concurrency, or at one rate of requests."""

    requests: int
    failures: int
    failure_share: float
    ttft_ms: Spread
    itl_ms: Spread
    chunk_gap_ms: Spread | None = None
    request_s: Spread
    tokens_per_s: Rate
    output_tokens: float
    invalid: bool = False
    records: list[Request] = []
    machine: Machine | None = None


class LatencyFile(Part):
    """measured/<variant>/latency.json; the keys are concurrencies, and requests per second."""

    concurrency: dict[str, Load]
    rates: dict[str, Load] = {}
    checks_s: float | None = None


class ServerSettings(Part):
    """What the server ran with; `support` lists what was added to the engine, `engine` what it says of itself."""

    support: list[str] = []
    engine: dict[str, Any] = {}


class ServerFile(Part):
    """measured/<variant>/server.json: the server's own report."""

    method: str | None
    num_speculative_tokens: int | None
    verifier: str | None
    max_model_len: int
    startup_s: float
    dtype: str | None = None
    command: list[str] = []
    settings: ServerSettings = ServerSettings()


class Difference(Part):
    """Where a variant's greedy reply first leaves the base's, and the verifier's margin there in nats."""

    id: str
    source: str
    position: int
    margin_nats: float | None
    verdict: str
    context_before: str
    base_after: str
    draft_after: str


class MatchShare(Part):
    """Equal replies of some, or the reason why there are none; `first_tokens` of each were compared."""

    not_run: str | None = None
    total: int = 0
    exact_share: float | None = None
    low: float | None = None
    high: float | None = None
    first_tokens: int | None = None


class Rounding(Part):
    """By how much the verifier's close margins differ between two runs, over so many tokens that both wrote."""

    tokens: int
    below_nats: float
    p99_nats: float | None
    largest_nats: float | None


class MatchFile(Part):
    """match/<variant>.json."""

    exact: int
    total: int
    exact_share: float | None
    low: float | None = None
    high: float | None = None
    faults: int
    near_tie_nats: float | None = None
    rounding: Rounding | None = None
    missing: list[str] = []
    sources: dict[str, MatchShare] = {}
    start: MatchShare | None = None
    differences: list[Difference]


class Parity(Part):
    """Acceptance length that the reference loop predicts for the exported draft, beside the served one."""

    predicted_length: float
    served_length: float
    gap: float
    low: float | None
    high: float | None
    margin: float = 0.0
    within: bool
    predicted_per_position: list[float] = []
    served_per_position: list[float] = []

    @property
    def reaches_out(self) -> bool:
        """Whether part of the interval lies beyond the margin, so that the agreement is not shown."""
        return self.margin > 0 and not -self.margin <= (self.low or 0.0) <= (self.high or 0.0) <= self.margin

    @property
    def told(self) -> str:
        """Where the interval lies: `within` the margin, `not failed` where it only reaches beyond it, or `beyond`."""
        if not self.within:
            return "beyond"
        return "not failed" if self.reaches_out else "within"


class Diagnosis(Part):
    """The trap behind a draft that is served worse than it should be, and what speaks for it."""

    trap: str
    said: str


class ParityFile(Part):
    """parity/<algorithm>.json."""

    benchmarks: dict[str, Parity]
    diagnosis: Diagnosis | None = None


class TrainingSummary(Part):
    """training/<algorithm>/summary.json."""

    steps: int
    tokens: int
    seconds: float
    tokens_per_s: float
    peak_memory_bytes: float
    validation: dict[str, Any]
    draft_parameters: int
    processes: int = 1
    longest_row_tokens: int | None = None


class Manifest(Part):
    """capture/manifest.json."""

    verifier: dict[str, Any]
    rows: int
    tokens: int
    supervised_tokens: int
    dropped: dict[str, int]
    cut_at_limit: int = 0
    seconds: float
    tokens_per_s: float


class Source(Part):
    """One prompt source as it was asked for and as it came."""

    source: str
    split: str
    rows_asked: int
    rows: int
    not_run: str | None = None
    prompt_tokens_max: int = 0


class SourcesFile(Part):
    """prompts/sources.json."""

    sources: list[Source]


class ExtraFigure(Part):
    """One figure of an optional file as it enters results.csv; without a value, `note` says why."""

    metric: str
    benchmark: str = ""
    variant: str | None = None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    note: str = ""


class ExtraFile(Part):
    """<folder>/<name>.json of a check that a run may lack. A figure without `variant` is of variant <name>.

    lossless/<variant>.json says besides what was `found`, at which temperature, and whether the sampler holds.
    """

    figures: list[ExtraFigure] = []
    found: str = ""
    lossless: bool | None = None
    temperature: float | None = None


class Published(Part):
    """One figure of others in reproductions/<name>/published.yaml.

    k = draft tokens per step; None where the source does not say, as for `temperature`.
    """

    algorithm: str
    metric: str
    benchmark: str
    value: Any
    verifier: str = ""
    draft: str | None = None
    k: int | None = None
    temperature: float | None = None
    conditions: Any = Field(default="")
    source: str
    quality: str = ""
