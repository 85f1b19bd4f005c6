"""Converts a draft of another project: read, translate, lint, write. Called by `command`."""

import json
import shlex
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

import algorithms
from algorithms.contract import VerifierWeights
from algorithms.foreign import Answers, Case, Fields, ForeignError, ForeignLayout, Ledger
from harness.checkpoint.config_rules import verifier_path
from harness.checkpoint.convert.layouts import layout_of
from harness.checkpoint.convert.native import DEFAULT_TOKENS
from harness.checkpoint.convert.source import Source, open_source, verifier_folder
from harness.checkpoint.findings import Finding, Subject, VerifierFacts
from harness.checkpoint.lint import accepting, lint
from harness.checkpoint.reading import SINGLE_FILE
from harness.checkpoint.release import Record, weight_hashes, write_record
from harness.checkpoint.verifier_facts import read_facts
from harness.checkpoint.writing import RECORD
from harness.errors import UserError
from harness.files import file_sha256, replacing_folder, write_json
from harness.provenance import collect
from harness.verifiers.weights import load_weights

REPORT = "conversion.json"
# What these say of a draft is how it was trained: a conversion keeps it, and says so.
OF_THE_SOURCE = ("rope-of-verifier", "norm-epsilon", "stop-tokens")


@dataclass(frozen=True)
class Request:
    """What the user asks for.

    Attributes:
        source, verifier: folder or hub id.
        verifier_name: what the checkpoint calls the verifier; None for `verifier`.
        layout: name of the source's layout; None to recognise it.
        accepted: lint rules whose faults are intended.
    """

    source: str
    verifier: str
    out: Path
    answers: Answers = field(default_factory=Answers)
    layout: str | None = None
    verifier_name: str | None = None
    revision: str | None = None
    accepted: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """What artifacts call the verifier."""
        return self.verifier_name or self.verifier


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        report: content of conversion.json.
        findings: what the linter says; empty for vLLM's own configurations.
        command: how the draft is served.
    """

    layout: ForeignLayout
    report: dict[str, Any]
    findings: list[Finding]
    command: str


def translate(
    layout: ForeignLayout, source: Source, verifier: VerifierWeights, answers: Answers
) -> tuple[Case, dict[str, Any]]:
    """(case, config.json of the checkpoint); the tensors are in the case's ledger.

    Raises:
        UserError: the source cannot be converted, or not without an answer.
    """
    try:
        case = Case(Fields(source.config), Ledger(source.tensors), verifier, answers)
        content = layout.translate(case)
    except ForeignError as error:
        raise UserError(str(error)) from None
    unread = [key for key in case.fields.unread() if key not in answers.ignored_keys]
    if unread:
        said = f"config.json: {', '.join(unread)}: not known in layout {layout.name}"
        raise UserError(f"{said}. Fix: pass --ignore-key for each one that changes nothing the draft computes")
    return case, content


def convert(request: Request) -> Outcome:
    """Convert one draft into `request.out`, which appears whole or not at all.

    Raises:
        UserError: the source, the verifier or an answer does not do, or the linter finds a fault.
    """
    _check_place(request.out)
    source, folder = open_source(request.source, request.revision), verifier_folder(request.verifier)
    layout = layout_of(source.config, source.tensors, request.layout, f"{request.source}/config.json")
    case, content = translate(layout, source, load_weights(folder), request.answers)
    facts = read_facts(folder)
    section = content.get("speculators_config", {})
    section |= {"verifier": {"name_or_path": request.named, "architectures": facts.architectures}}
    findings = _check(request, _findings(layout, content | {"speculators_config": section}, case.ledger.tensors, facts))
    if not layout.native:
        content["speculators_config"] = section
    report = _report(request, source, layout, case, folder, findings)
    _write(request.out, content, case.ledger.tensors, report)
    return Outcome(layout, report, findings, _command(request, layout, str(request.out)))


def _check_place(out: Path) -> None:
    """Only a folder that holds a conversion and nothing else is replaced."""
    if not out.is_dir() or not any(out.iterdir()):
        return
    others = sorted({path.name for path in out.iterdir()} - {"config.json", SINGLE_FILE, REPORT, RECORD})
    if others or not (out / REPORT).exists():
        raise UserError(f"{out}: holds {', '.join(others) or 'another checkpoint'}. Fix: give a new folder")


def _findings(
    layout: ForeignLayout, content: dict[str, Any], tensors: dict[str, Tensor], facts: VerifierFacts
) -> list[Finding]:
    """What the linter says; of a configuration of vLLM's own, what it says of the verifier's name."""
    if layout.native:
        told = verifier_path(Subject(content, tensors, None))
        return [Finding("verifier-path", verdict, "", found, fix) for verdict, found, fix in told]
    return lint(Subject(content, tensors, algorithms.load(layout.becomes), ["config.json", SINGLE_FILE], facts))


def _check(request: Request, findings: list[Finding]) -> list[Finding]:
    """The findings, unless one is a fault that is neither the source's own nor accepted."""
    rules = {f.rule for f in findings}
    for rule in request.accepted:
        if rule not in rules:
            raise UserError(f"--accept {rule}: no such rule. Fix: use one of {', '.join(sorted(rules))}")
    findings = accepting(findings, {*OF_THE_SOURCE, *request.accepted})
    faults = [f"{f.rule}: {f.found}. Fix: {f.fix}" for f in findings if f.verdict == "fault"]
    if faults:
        raise UserError(f"{request.out}: not written: {'; '.join(faults)}")
    return findings


def _command(request: Request, layout: ForeignLayout, draft: str) -> str:
    if not layout.native:
        return f"vllm serve {shlex.quote(draft)}"
    tokens = request.answers.speculative_tokens or DEFAULT_TOKENS
    settings = {"method": layout.becomes, "model": draft, "num_speculative_tokens": tokens}
    return f"vllm serve {shlex.quote(request.named)} --speculative-config {shlex.quote(json.dumps(settings))}"


def _report(
    request: Request, source: Source, layout: ForeignLayout, case: Case, folder: Path, findings: Collection[Finding]
) -> dict[str, Any]:
    """conversion.json: where every tensor went, and everything that says what was converted."""
    answers = asdict(request.answers) | {"ignored_keys": sorted(request.answers.ignored_keys)}
    origin = collect(answers, None, "full")
    return {
        "source": {
            "name": source.name,
            "revision": source.revision,
            "sha256": source.files,
            "left_aside": source.left_aside,
        },
        "layout": layout.name,
        "becomes": layout.becomes,
        "verifier": {
            "name": request.named,
            "config_sha256": file_sha256(folder / "config.json"),
        },
        "answers": answers,
        "notes": case.notes,
        "tensors": case.ledger.went,
        "made": case.ledger.made,
        "kept_faults": [asdict(f) for f in findings if f.fix == "accepted"],
        "serve": _command(request, layout, request.out.name),
        **{key: origin[key] for key in ("commit", "dirty", "versions", "finished_at")},
    }


def _write(out: Path, content: dict[str, Any], tensors: dict[str, Tensor], report: dict[str, Any]) -> None:
    whole = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    with replacing_folder(out) as partial:
        save_file(whole, partial / SINGLE_FILE, metadata={"format": "pt"})
        write_json(partial / "config.json", content)
        write_json(partial / REPORT, report)
        origin = {key: report[key] for key in ("source", "layout", "versions", "finished_at")}
        write_record(partial, Record(weights_sha256=weight_hashes(partial), source=origin))
