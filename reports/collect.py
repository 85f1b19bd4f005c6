"""Reads a run's result files into one `Run`; refuses what is missing, damaged, without provenance or of another scale.

Called by `python -m reports`; everything else in this package works on the `Run`.
"""

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from harness.config import Reproduction, load_reproduction
from harness.errors import UserError
from harness.files import file_sha256
from harness.recipes import REPRODUCTIONS, SCALES
from reports import formats

BASE = "none"
# Folders of checks that a run may lack: every JSON file in them may bring `figures` into the long table.
OPTIONAL = {
    "lossless": "replies sampled at a temperature above 0",
    "speed": "time of a step, and the draft length that pays",
}
NOT_IN_REPRODUCTION = "not part of this reproduction"

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Cost:
    """What one rule of the DAG took: wall seconds and peak resident memory in MiB, start-up included."""

    rule: str
    wall_s: float
    peak_memory_mib: float | None


@dataclass
class Run:
    """All result files of one run. Dictionaries go by variant; `provenance` and `sha256` by path inside `folder`.

    `elsewhere` holds published figures for other verifiers, by reproduction. `steps` holds, by source, the accepted
    tokens of every verify step of every reply; `extras` what the optional checks left, by path.
    """

    folder: Path
    reproduction: Reproduction
    sources: formats.SourcesFile
    manifest: formats.Manifest
    published: list[formats.Published]
    elsewhere: dict[str, list[formats.Published]]
    servers: dict[str, formats.ServerFile] = field(default_factory=dict)
    steps: dict[str, dict[str, list[list[int]]]] = field(default_factory=dict)
    acceptance: dict[str, formats.AcceptanceFile] = field(default_factory=dict)
    accuracy: dict[str, formats.AccuracyFile] = field(default_factory=dict)
    latency: dict[str, formats.LatencyFile] = field(default_factory=dict)
    match: dict[str, formats.MatchFile] = field(default_factory=dict)
    parity: dict[str, formats.ParityFile] = field(default_factory=dict)
    training: dict[str, formats.TrainingSummary] = field(default_factory=dict)
    curves: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    extras: dict[str, formats.ExtraFile] = field(default_factory=dict)
    costs: list[Cost] = field(default_factory=list)
    provenance: dict[str, formats.Provenance] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)

    @property
    def sampled(self) -> dict[str, formats.ExtraFile]:
        """What the test of sampled replies found, by variant."""
        files = {PurePosixPath(path): file for path, file in self.extras.items()}
        return {path.stem: file for path, file in files.items() if path.parts[0] == "lossless"}

    @property
    def scale(self) -> str:
        """`full`, `smoke` or `mini`."""
        return self.reproduction.scale

    @property
    def drafted(self) -> list[str]:
        """The variants that speculate, in the reproduction's order."""
        return [variant for variant in self.reproduction.variants if self.reproduction.base_of(variant) != variant]


def _fault(path: Path, what: str, fix: str = "delete it and run its step again") -> UserError:
    return UserError(f"{path}: {what}. Fix: {fix}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _fault(path, "no such file", "run the target again with snakemake, it makes what is missing") from None
    except UnicodeDecodeError:
        raise _fault(path, "not text") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; one clear line when it is missing or damaged."""
    try:
        content = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise _fault(path, f"damaged, not JSON at line {error.lineno}") from None
    if not isinstance(content, dict):
        raise _fault(path, "holds no JSON object")
    return content


def _typed(path: Path, content: Any, model: type[Model]) -> Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _fault(path, f"{where}: {first['msg'].lower()}") from None


class _Reader:
    """Reads the measured files of one folder and keeps their provenance and hashes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.provenance: dict[str, formats.Provenance] = {}
        self.sha256: dict[str, str] = {}

    def read(self, name: str, model: type[Model]) -> Model:
        """A measured file as a `model`; refused without provenance."""
        path = self.folder / name
        content = read_json(path)
        if not isinstance(content.get("provenance"), dict):
            raise _fault(path, "no provenance, so no report takes it")
        try:
            self.provenance[name] = formats.Provenance.model_validate(content["provenance"])
        except ValidationError as error:
            raise _fault(path, f"provenance without {error.errors()[0]['loc'][0]}, so no report takes it") from None
        self.sha256[name] = file_sha256(path)
        return _typed(path, content, model)

    def check_scale(self, wanted: str) -> None:
        """Refuse a file that was made at another scale than the run's."""
        for name, provenance in self.provenance.items():
            if provenance.scale != wanted:
                raise _fault(self.folder / name, f"is {provenance.scale}, not {wanted}")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file; one clear line when it is missing or damaged."""
    rows = []
    # Not splitlines(): it also breaks at characters such as U+2028, which a reply may hold.
    for number, line in enumerate(_text(path).split("\n"), 1):
        try:
            rows += [json.loads(line)] if line else []
        except json.JSONDecodeError:
            raise _fault(path, f"damaged at line {number}") from None
    return rows


def read_published(path: Path) -> list[formats.Published]:
    """Figures of others for this verifier; an absent or empty file is an empty list."""
    if not path.exists():
        return []
    try:
        content = yaml.load(_text(path), Loader=yaml.CSafeLoader) or []
    except yaml.YAMLError as error:
        raise _fault(path, f"not YAML ({str(error).splitlines()[0]})", "correct it") from None
    try:
        return TypeAdapter(list[formats.Published]).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise _fault(
            path, f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}", "correct that entry"
        ) from None


def _published_elsewhere(reproductions: Path, name: str) -> dict[str, list[formats.Published]]:
    """Figures of others for the verifiers of the other reproductions, by reproduction."""
    others = sorted(path for path in reproductions.glob("*/published.yaml") if path.parent.name != name)
    found = {path.parent.name: read_published(path) for path in others}
    return {reproduction: items for reproduction, items in found.items() if items}


def read_costs(folder: Path) -> list[Cost]:
    """Snakemake's benchmark files under `folder`, in order of name; none is an empty list."""
    costs = []
    for path in sorted(folder.rglob("*.tsv")):
        for row in csv.DictReader(path.read_text().splitlines(), delimiter="\t"):
            memory = row.get("max_rss") or ""
            rule = path.relative_to(folder).with_suffix("").as_posix()
            peak = float(memory) if memory.replace(".", "").isdigit() else None
            costs.append(Cost(rule, float(row["s"]), peak))
    return costs


def _scale_of(folder: Path, name: str) -> str:
    """The scale to read the settings at: a results folder is called `<name>` or `<name>_<scale>`."""
    suffix = folder.name.removeprefix(f"{name}_")
    return suffix if suffix in SCALES else "full"


def load_run(folder: Path, name: str, reproductions: Path = REPRODUCTIONS) -> Run:
    """Read everything that the run of reproduction `name` left in `folder`.

    Raises:
        UserError: a file is missing, damaged, without provenance or of another scale; one line names it.
    """
    if not folder.is_dir():
        raise UserError(f"--results {folder}: no such folder. Fix: run snakemake --cores all reproduce_{name} first")
    reproduction = load_reproduction(name, _scale_of(folder, name), reproductions)
    reader = _Reader(folder)
    run = Run(
        folder=folder,
        reproduction=reproduction,
        sources=reader.read("prompts/sources.json", formats.SourcesFile),
        manifest=reader.read("capture/manifest.json", formats.Manifest),
        published=read_published(reproductions / name / "published.yaml"),
        elsewhere=_published_elsewhere(reproductions, name),
        costs=read_costs(folder / "benchmarks"),
    )
    for variant in reproduction.variants:
        _read_variant(run, reader, variant)
    for path in sorted(path for name in OPTIONAL for path in (folder / name).glob("*.json")):
        name = path.relative_to(folder).as_posix()
        run.extras[name] = reader.read(name, formats.ExtraFile)
    reader.check_scale(reproduction.scale)
    run.provenance, run.sha256 = reader.provenance, reader.sha256
    return run


def _read_variant(run: Run, reader: _Reader, variant: str) -> None:
    measured = f"measured/{variant}"
    run.servers[variant] = reader.read(f"{measured}/server.json", formats.ServerFile)
    run.steps[variant] = _steps(read_jsonl(run.folder / measured / "replies.jsonl"))
    run.acceptance[variant] = reader.read(f"{measured}/acceptance.json", formats.AcceptanceFile)
    _check_identities(run.folder / measured / "acceptance.json", run.acceptance[variant])
    run.accuracy[variant] = reader.read(f"{measured}/accuracy.json", formats.AccuracyFile)
    run.latency[variant] = reader.read(f"{measured}/latency.json", formats.LatencyFile)
    if variant not in run.drafted:
        return
    run.match[variant] = reader.read(f"match/{variant}.json", formats.MatchFile)
    if variant in run.reproduction.algorithms:
        run.training[variant] = reader.read(f"training/{variant}/summary.json", formats.TrainingSummary)
        run.curves[variant] = read_jsonl(run.folder / f"training/{variant}/metrics.jsonl")
        run.parity[variant] = reader.read(f"parity/{variant}.json", formats.ParityFile)


def _check_identities(path: Path, acceptance: formats.AcceptanceFile) -> None:
    """Counters that contradict each other or the replies enter no report."""
    for source, checks in acceptance.identity_checks.items():
        for check, holds in checks.items():
            if not holds:
                raise _fault(path, f"{source}: {check.replace('_', ' ')} does not hold, so the counters are wrong")


def _steps(replies: list[dict[str, Any]]) -> dict[str, list[list[int]]]:
    by_source: dict[str, list[list[int]]] = {}
    for reply in replies:
        if reply.get("spec"):
            by_source.setdefault(reply["source"], []).append(reply["spec"]["accepted_per_step"])
    return by_source
