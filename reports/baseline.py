"""A run cut down to what comparisons need, prompt by prompt; with a reason and a history it is a committed baseline.

`snapshot` is called by `python -m reports.gate` and `python -m reports.environments`; `reports/published/` holds the
baselines that `python -m reports.gate accept` wrote.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from harness.errors import UserError
from harness.files import file_sha256, json_sha256, replacing
from harness.sections.base import Strict
from reports.collect import BASE, Run, read_json, read_jsonl
from reports.formats import Load, Score

FORMAT = 1
HASH_DIGITS = 12
# Where a server listens and where its files lie say nothing of what it computes.
PLACES = {"--host", "--port", "--served-model-name", "--model"}


class Variant(Strict):
    """What one variant did on every prompt.

    `steps`: by benchmark and prompt id, how many verify steps accepted 0, 1, ... K drafts. `accuracy`: by task and
    problem id, right in strict and in flexible form (0 or 1). `latency`: by concurrency and request id, output tokens
    and seconds. `absent`: what was not run, is invalid or does not compare, with the reason.
    """

    num_speculative_tokens: int
    draft_sha256: str | None = None
    steps: dict[str, dict[str, list[int]]] = Field(default_factory=dict)
    accuracy: dict[str, dict[str, list[int]]] = Field(default_factory=dict)
    faults: int | None = None
    latency: dict[str, dict[str, list[float]]] = Field(default_factory=dict)
    absent: dict[str, str] = Field(default_factory=dict)
    serving: dict[str, str] = Field(default_factory=dict)


class Snapshot(Strict):
    """A run: what it is of, where it was measured, and its variants. Two snapshots of the same prompts compare.

    `prompts`: by benchmark and id, a hash of the prompt's tokens. `request`: the fields of every request but the model.
    """

    reproduction: str
    scale: str
    verifier: str
    prompts: dict[str, dict[str, str]]
    request: dict[str, Any]
    commit: str
    dirty: bool | None
    finished_at: str
    versions: dict[str, str]
    hardware: dict[str, Any]
    settings_sha256: str
    variants: dict[str, Variant]


class Accepted(Strict):
    """When, why and from which commit a baseline was taken."""

    date: str
    commit: str
    reason: str


class Earlier(Accepted):
    """A baseline that was replaced: its pooled figures, by variant and metric."""

    figures: dict[str, dict[str, float]]


class Baseline(Strict):
    """reports/published/<target>.baseline.json."""

    format: int = Field(FORMAT, description=f"use {FORMAT}: accept the baseline again with this version")
    accepted: Accepted
    run: Snapshot
    history: list[Earlier] = Field(default_factory=list)


def _histogram(accepted: list[int], draft_tokens: int) -> list[int]:
    return [accepted.count(number) for number in range(max([draft_tokens, *accepted]) + 1)]


def _replies(run: Run, variant: str) -> list[dict[str, Any]]:
    return read_jsonl(run.folder / "measured" / variant / "replies.jsonl")


def _steps(replies: list[dict[str, Any]], draft_tokens: int) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {}
    for reply in replies:
        accepted = (reply.get("spec") or {}).get("accepted_per_step") or []
        found.setdefault(reply["source"], {})[reply["id"]] = _histogram(accepted, draft_tokens)
    return found


def _prompts(replies: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for reply in replies:
        tokens = json_sha256(reply.get("prompt_token_ids"))[:HASH_DIGITS]
        found.setdefault(reply["source"], {})[reply["id"]] = tokens
    return found


def _score_fault(score: Score) -> str | None:
    if score.not_run:
        return f"not run: {score.not_run}"
    return f"invalid: {score.failed} failed and {score.empty} empty of {score.n} replies" if score.invalid else None


def _flags(command: list[str]) -> dict[str, str]:
    """The flags of a server's command line, each with its value, without places on the machine."""
    found, flag = {}, ""
    for word in command:
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            found[flag] = value or "on"
        elif flag:
            found[flag], flag = word, ""
    return {flag: value for flag, value in found.items() if flag not in PLACES}


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in content.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: json.dumps(value, sort_keys=True)}
    return flat


def _serving(run: Run, variant: str) -> dict[str, str]:
    """How the variant was served, by the server's own report: flags, dtype, engine settings, environment."""
    report = read_json(run.folder / "measured" / variant / "server.json")
    known = {key: report.get(key) for key in ("method", "dtype", "max_model_len")}
    return _flat(known) | _flat(report.get("settings") or {}) | _flags(report.get("command") or [])


def _speed_doubt(run: Run, level: str, load: Load) -> str | None:
    """Why a variant's times at one concurrency do not compare with the base's of the same run."""
    limits, base = run.reproduction.evaluate.latency, run.latency[BASE].concurrency.get(level)
    machine, beside = load.machine, base.machine if base else None
    if machine is None or beside is None:
        return None
    busy = max(machine.others_cpu_share, beside.others_cpu_share)
    if busy > limits.others_cpu_share_max:
        return f"other programs took {busy:.0%} of the cores"
    times = [each.kernel_ms.before + each.kernel_ms.after for each in (machine, beside)]
    drift = max(times) / min(times) - 1
    return f"the machine's pace changed by {drift:.0%}" if drift > limits.machine_drift_max else None


def _draft_sha256(run: Run, variant: str) -> str | None:
    """Hash of a variant's draft; one that is served with the verifier in few bits is called after its draft."""
    for name in (variant, variant.rpartition("_")[0]):
        weights = run.folder / "drafts" / name / "model.safetensors"
        if name and weights.exists():
            return file_sha256(weights)
    return None


def _variant(run: Run, variant: str) -> Variant:
    draft_tokens, absent = run.acceptance[variant].num_speculative_tokens, {}
    accuracy: dict[str, dict[str, list[int]]] = {}
    for task, score in run.accuracy[variant].tasks.items():
        if fault := _score_fault(score):
            absent[f"accuracy {task}"] = fault
        else:
            accuracy[task] = {str(each.id): [int(each.strict), int(each.flexible)] for each in score.per_problem}
    latency: dict[str, dict[str, list[float]]] = {}
    for level, load in run.latency[variant].concurrency.items():
        if load.invalid:
            absent[f"latency c{level}"] = f"invalid: {load.failures} of {load.requests} requests failed"
        else:
            latency[level] = {str(each.id): [each.output_tokens, each.latency_s] for each in load.records}
            if doubt := _speed_doubt(run, level, load):
                absent[f"speedup_c{level}"] = doubt
    for row in run.acceptance[variant].failed:
        absent[f"reply {row.get('id')}"] = f"failed: {row.get('reason')}"
    return Variant(
        num_speculative_tokens=draft_tokens,
        draft_sha256=_draft_sha256(run, variant),
        steps={} if variant == BASE else _steps(_replies(run, variant), draft_tokens),
        accuracy=accuracy,
        faults=run.match[variant].faults if variant in run.match else None,
        latency=latency,
        absent=absent,
        serving=_serving(run, variant),
    )


def snapshot(run: Run) -> Snapshot:
    """The run as comparisons need it.

    Raises:
        UserError: its commit is unknown: what cannot be traced is no baseline and is judged by none.
    """
    measured = run.folder / "measured" / BASE / "acceptance.json"
    provenance = run.provenance[f"measured/{BASE}/acceptance.json"]
    if provenance.commit is None:
        raise UserError(f"{measured}: provenance without a commit. Fix: measure in a git checkout")
    request = read_json(measured).get("request") or {}
    dirty = [each.dirty for each in run.provenance.values()]
    return Snapshot(
        reproduction=run.reproduction.name,
        scale=run.scale,
        verifier=str(run.manifest.verifier.get("sha256") or run.manifest.verifier.get("id")),
        prompts=_prompts(_replies(run, BASE)),
        request={key: value for key, value in request.items() if key != "model"},
        commit=provenance.commit,
        dirty=None if None in dirty else any(dirty),
        finished_at=provenance.finished_at,
        versions=provenance.versions,
        hardware=provenance.hardware.model_dump(),
        settings_sha256=provenance.settings_sha256,
        variants={variant: _variant(run, variant) for variant in run.reproduction.variants},
    )


def figures(run: Snapshot) -> dict[str, dict[str, float]]:
    """The pooled figures of a snapshot by variant and `metric benchmark`: what the history keeps of an old baseline."""
    found: dict[str, dict[str, float]] = {}
    for name, variant in run.variants.items():
        row = found[name] = {}
        for source, prompts in variant.steps.items():
            steps = sum(map(sum, prompts.values()))
            accepted = sum(number * count for each in prompts.values() for number, count in enumerate(each))
            if steps:
                row[f"acceptance_length {source}"] = round(1 + accepted / steps, 4)
        for task, problems in variant.accuracy.items():
            row[f"accuracy_flexible {task}"] = round(sum(each[1] for each in problems.values()) / len(problems), 4)
        if variant.faults is not None:
            row["output_match_faults"] = variant.faults
    return found


def read_baseline(path: Path) -> Baseline:
    """A committed baseline.

    Raises:
        UserError: it is missing, a folder, damaged, of another format or something else; one line says which.
    """
    fix = (
        f"git checkout {path} if it was one, or take a run as one: "
        "python -m reports.gate accept RESULTS --baseline FILE --reason TEXT"
    )
    if path.is_dir():
        raise UserError(f"{path}: not a baseline but a folder. Fix: name a file, such as {path}/<target>.baseline.json")
    if not path.exists():
        raise UserError(f"{path}: no such baseline. Fix: {fix}")
    try:
        baseline = Baseline.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{each}." for each in first["loc"]).removesuffix(".")
        what = f"{where}: {first['msg'].lower()}" if where else "damaged, or not JSON of its kind"
        raise UserError(f"{path}: not a baseline: {what}. Fix: {fix}") from None
    if baseline.format != FORMAT:
        raise UserError(f"{path}: not a baseline of this version: format = {baseline.format}, not {FORMAT}. Fix: {fix}")
    return baseline


def _written(value: Any, indent: str = "") -> str:
    """JSON with one line for each prompt, so that a new baseline can be read as a difference."""
    if not isinstance(value, dict) or not any(isinstance(each, (dict, list)) for each in value.values()):
        return json.dumps(value, ensure_ascii=False)
    inner = indent + " "
    lines = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {_written(each, inner)}" for key, each in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def accept(run: Snapshot, path: Path, reason: str) -> Baseline:
    """Write `run` as the baseline in `path`; one that is there goes into the history with its figures.

    Raises:
        UserError: no reason, or the run was measured with uncommitted changes.
    """
    if not reason.strip():
        raise UserError("--reason: empty. Fix: say why the figures may change, the history keeps it")
    if run.dirty is not False:
        raise UserError("RESULTS: measured with uncommitted changes. Fix: commit, run the target again, then accept")
    history: list[Earlier] = []
    if path.exists():
        old = read_baseline(path)
        history = [Earlier(**old.accepted.model_dump(), figures=figures(old.run)), *old.history]
    accepted = Accepted(
        date=datetime.now(UTC).isoformat(timespec="seconds"), commit=run.commit, reason=" ".join(reason.split())
    )
    baseline = Baseline(accepted=accepted, run=run, history=history)
    with replacing(path) as partial:
        partial.write_text(_written(baseline.model_dump()) + "\n", encoding="utf-8")
    return baseline
