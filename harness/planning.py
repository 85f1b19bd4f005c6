"""A reproduction and what each of its steps will take, before anything of it is there.

Called by `harness.plan` and, for the resources of the rules, by `harness/rules/common.smk`. The formulas are in
`harness.costs`; here they meet the settings. Hours are of wall time, memory is of one device (of the whole, on a CPU).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import algorithms
from algorithms.settings import DraftConfig
from algorithms.work import Pack, Sizes
from harness import costs
from harness.config import Reproduction
from harness.errors import UserError
from harness.machines import KNOWN, Machine
from harness.sections.plan import Plan
from harness.sections.verifier import HAVE_EXPERTS, MiniatureVerifier

HOUR_S = 3600.0
# Prompts of the known benchmarks are short beside chats; their replies end at the limit more often than not.
BENCHMARK_PROMPT_TOKENS = 150.0
# Trained by 2 cores in a second, on average: 17,000 to 21,000 of a dense miniature, 10,000 to 16,000 with experts.
MINIATURE_TOKENS_PER_S, WITH_EXPERTS_TOKENS_PER_S = 19_000.0, 14_000.0


@dataclass(frozen=True)
class Step:
    """One job: what it reads or writes in tokens, and what it takes. Zero disk or memory: next to nothing."""

    name: str
    of: str
    tokens: float
    hours: float
    devices: int
    disk_bytes: float = 0.0
    memory_bytes: float = 0.0


@dataclass(frozen=True)
class Mode:
    """One way to bring states to the training: disk, device hours of the verifier, hours until one draft is trained."""

    name: str
    disk_bytes: float
    verifier_device_hours: float
    wall_hours: float
    devices: int


@dataclass(frozen=True)
class Planned:
    """Everything that is planned of one reproduction."""

    steps: list[Step]
    modes: list[Mode]

    @property
    def disk_bytes(self) -> float:
        """What lies on disk at the end."""
        return sum(step.disk_bytes for step in self.steps)

    @property
    def device_hours(self) -> float:
        """Devices times hours, over all steps."""
        return sum(step.hours * step.devices for step in self.steps)

    @property
    def memory_bytes(self) -> float:
        """The most that a device must hold."""
        return max(step.memory_bytes for step in self.steps)

    def step(self, name: str, of: str = "") -> Step:
        """A step by name, and where there are several, by what it is of."""
        return next(step for step in self.steps if step.name == name and step.of == of)


class _Planner:
    """The quantities that several steps share."""

    def __init__(self, run: Reproduction, plan: Plan) -> None:
        self.run, self.plan, self.size = run, plan, plan.verifier
        self.machine: Machine = KNOWN[plan.machine]
        self.rows = sum(source.rows for source in run.data.train)
        self.reply = min(plan.reply_tokens, run.data.reply.max_new_tokens)
        self.tokens = self.rows * (plan.prompt_tokens + self.reply)
        self.layers = len(run.capture.aux_layers) + 1
        self.engine_devices = run.serve.tensor_parallel_size

    def _writing_s(self) -> float:
        """Seconds to write the training replies."""
        return costs.reply_s(
            self.size, self.machine, self.engine_devices, self.rows, self.plan.prompt_tokens, self.reply,
            self.run.capture.max_num_seqs,
        )  # fmt: skip

    def _store_bytes(self) -> float:
        eight_bits = self.run.capture.store_dtype == "int8"
        return costs.store_bytes(self.tokens, self.layers, self.size.hidden_size, eight_bits)

    def _again_s(self) -> float:
        """Seconds of the verifier's forward pass over every prompt and reply."""
        return costs.forward_s(self.size, self.machine, self.engine_devices, self.tokens)

    def _serving_bytes(self, sequences: int) -> float:
        """Memory of an engine whose `sequences` rows are all there, at their mean length when they end."""
        return costs.serving_bytes(self.size, self.engine_devices, sequences, self.plan.prompt_tokens + self.reply)

    def verifier(self) -> Step:
        """Fetching the weights, with the disk's hours; a miniature is trained."""
        source, stored = self.run.verifier, self.size.weight_bytes
        if isinstance(source, MiniatureVerifier):
            experts = source.family in HAVE_EXPERTS
            rate = WITH_EXPERTS_TOKENS_PER_S if experts else MINIATURE_TOKENS_PER_S
            hours = (self.machine.start_s + source.training_tokens / rate) / HOUR_S
            return Step("verifier", "", source.training_tokens, hours, 1, stored)
        return Step("verifier", "", 0.0, costs.write_s(self.machine, stored) / HOUR_S, 0, stored)

    def capture(self, mode: str) -> Step:
        """Replies and states in one pass: writing replies or writing to disk, whichever is slower; or replies alone.

        The states that hybrid keeps are counted here, although the first training writes them.
        """
        replies, memory = self.tokens * costs.INDEX_BYTES, self._serving_bytes(self.run.capture.max_num_seqs)
        disk = replies if mode == "online" else self._store_bytes()
        written = self._store_bytes() if mode == "offline" else replies
        seconds = max(self._writing_s(), costs.write_s(self.machine, written)) + self.machine.start_s
        return Step("capture", "", self.tokens, seconds / HOUR_S, self.engine_devices, disk, memory)

    def _trainers(self) -> int:
        """Devices that train one draft: processes on CPU cores share one machine."""
        return self.run.training.processes if self.machine.gpu else 1

    def train(self, name: str) -> Step:
        """All steps of one draft; where an engine gives the states meanwhile, that may be slower."""
        knobs = algorithms.config_class(name).model_validate(self.run.algorithms[name])
        training, pack = self.run.training, self._pack()
        devices = self._trainers()
        work = knobs.work(self._sizes(), pack)
        seen = self.tokens * (1 - training.validation_share) * training.epochs
        seconds = seen / pack.tokens * costs.training_step_s(work, self.machine, devices, training.optimizer == "muon")
        memory = costs.training_bytes(work, self.size, work.logits / self._vocabulary(knobs) / devices, knobs.layers)
        disk = work.parameters * (costs.STATE_BYTES + costs.TRAINED_BYTES)  # the draft, and the state to resume from
        mode, engine_s = self.run.capture.mode, self._again_s() * training.epochs
        devices += 0 if mode == "offline" else self.engine_devices
        seconds = max(seconds, {"offline": 0.0, "online": engine_s, "hybrid": engine_s / training.epochs}[mode])
        return Step("train", name, seen, (seconds + self.machine.start_s) / HOUR_S, devices, disk, memory)

    def _vocabulary(self, knobs: DraftConfig) -> int:
        return knobs.draft_vocab_size or self.size.vocab_size

    def _pack(self) -> Pack:
        tokens = float(self.run.training.tokens_per_step)
        document = self.plan.prompt_tokens + self.reply
        return Pack(tokens, tokens * self.reply / document, document)

    def _sizes(self) -> Sizes:
        size = self.size
        return Sizes(
            size.hidden_size, size.intermediate_size, size.attention_heads * size.head_dim,
            size.kv_heads * size.head_dim, size.vocab_size, len(self.run.capture.aux_layers),
        )  # fmt: skip

    def measure(self, variant: str) -> Step:
        """One server and its checks, at the speed of no speculation: an upper bound where drafting pays."""
        evaluate = self.run.evaluate
        rows_of = {source.name: source.rows for source in self.run.data.heldout}
        held_out = sum(min(rows, evaluate.acceptance.limit or rows) for rows in rows_of.values())
        problems = sum(min(evaluate.accuracy.limit, rows_of[task]) for task in evaluate.accuracy.tasks)
        loads = [
            (held_out, evaluate.acceptance.max_new_tokens, evaluate.acceptance.concurrency),
            (problems, evaluate.accuracy.max_new_tokens, evaluate.accuracy.concurrency),
        ]
        latency, sampling = evaluate.latency, evaluate.sampling
        sampled = min(sampling.prompts, held_out) * sampling.samples
        loads.append((sampled, sampling.max_new_tokens, sampling.concurrency))
        asked = latency.requests + latency.warmup_requests
        loads += [(asked, latency.max_new_tokens, concurrency) for concurrency in latency.concurrency]
        prompt = min(self.plan.prompt_tokens, BENCHMARK_PROMPT_TOKENS)
        seconds = self.machine.start_s + sum(
            costs.reply_s(self.size, self.machine, self.engine_devices, rows, prompt, min(reply, self.reply), together)
            for rows, reply, together in loads
        )
        tokens = sum(rows * (prompt + min(reply, self.reply)) for rows, reply, _ in loads)
        memory = self._serving_bytes(self.run.serve.max_num_seqs)
        return Step("measure", variant, tokens, seconds / HOUR_S, self.engine_devices, 0.0, memory)

    def modes(self, slowest: Step) -> Iterator[Mode]:
        """Offline, online and hybrid capture with the training of the slowest draft."""
        devices, trainers, epochs = self.engine_devices, self._trainers(), self.run.training.epochs
        start, forward = self.machine.start_s / HOUR_S, self._again_s() / HOUR_S
        drafts = len(self.run.algorithms)
        offline, online, hybrid = (self.capture(mode) for mode in ("offline", "online", "hybrid"))
        wall = offline.hours + slowest.hours
        yield Mode("offline", offline.disk_bytes, offline.hours * devices, wall, max(devices, trainers))
        # Replies are written once; every epoch of every draft asks the verifier for its states again.
        asked = online.hours + (forward * epochs + start) * drafts
        wall = online.hours + max(slowest.hours, forward * epochs + start)
        yield Mode("online", online.disk_bytes, asked * devices, wall, devices + trainers)
        # The first epoch of the first draft keeps them; all others read them.
        first, rest = slowest.hours / epochs, slowest.hours * (epochs - 1) / epochs
        wall = hybrid.hours + max(forward + start, first) + rest
        yield Mode("hybrid", hybrid.disk_bytes, (hybrid.hours + forward + start) * devices, wall, devices + trainers)


def plan_of(run: Reproduction) -> Planned:
    """What `run` will take.

    Raises:
        UserError: it has no section `plan`.
    """
    if run.plan is None:
        raise UserError(
            f"reproductions/{run.name}/reproduction.yaml: plan: missing at scale {run.scale}. "
            "Fix: add the section, with the sizes of the verifier and mean lengths"
        )
    planner = _Planner(run, run.plan)
    trained = [planner.train(name) for name in run.algorithms]
    measured = [planner.measure(variant) for variant in run.variants]
    steps = [planner.verifier(), planner.capture(run.capture.mode), *trained, *measured]
    slowest = max(trained, key=lambda step: step.hours)
    return Planned(steps, list(planner.modes(slowest)))


def planned_minutes(run: Reproduction, step: str, least: int, of: str = "") -> int:
    """A time limit for a step: twice what is planned, and `least` where that is less or nothing is planned."""
    return least if run.plan is None else max(least, ceil(2 * 60 * plan_of(run).step(step, of).hours))


def planned_disk_mb(run: Reproduction, step: str, otherwise: int, of: str = "") -> int:
    """Disk that a step fills, a tenth more than planned; `otherwise` where nothing is planned."""
    return otherwise if run.plan is None else ceil(1.1 * plan_of(run).step(step, of).disk_bytes / 1e6)
