"""Runs the lint rules over a draft checkpoint, for the lint command and at every read and write.

A rule is a small function in one of the tables; a new trap is one function and one row.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from torch import Tensor

import algorithms
from algorithms.contract import Algorithm, FormatRule
from harness.checkpoint.config_rules import CONFIG_RULES, STRUCTURE_RULES
from harness.checkpoint.findings import Finding, Rule, Saying, Subject
from harness.checkpoint.stored import Readable
from harness.checkpoint.tensor_rules import TENSOR_RULES
from harness.checkpoint.verifier_rules import VERIFIER_RULES


def algorithm_of(config: dict[str, Any]) -> Algorithm | None:
    """The algorithm that the checkpoint names; None if it is not known."""
    name = config.get("speculators_model_type")
    return algorithms.load(name) if name in algorithms.NAMES else None


def _of_algorithm(rule: FormatRule) -> Rule:
    def check(subject: Subject) -> Iterable[Saying]:
        # They look at names and shapes alone, which stored tensors have too.
        tensors = cast(dict[str, Tensor], subject.tensors)
        return [("fault", found, fix) for found, fix in rule.check(subject.config, tensors)]

    return Rule(rule.name, "the server stops, or drafts are useless", check)


def _apply(rule: Rule, subject: Subject) -> list[Finding]:
    if rule.needs_verifier and subject.facts is None:
        return [Finding(rule.name, "not checked", rule.symptom, "", "pass --verifier")]
    found = [Finding(rule.name, verdict, rule.symptom, what, fix) for verdict, what, fix in rule.check(subject)]
    return found or [Finding(rule.name, "ok", rule.symptom)]


def lint(subject: Subject) -> list[Finding]:
    """What every rule says, at least one line a rule, in the order of the tables.

    The rules beyond the structure are not checked on a config that is not well formed.
    """
    findings = [finding for rule in STRUCTURE_RULES for finding in _apply(rule, subject)]
    formed = not any(f.verdict == "fault" and f.rule in ("structure", "algorithm", "algorithm-keys") for f in findings)
    special = subject.format.rules if subject.format else ()
    for rule in (*CONFIG_RULES, *map(_of_algorithm, special), *TENSOR_RULES, *VERIFIER_RULES):
        blocked = [Finding(rule.name, "not checked", rule.symptom, "", "mend the structure first")]
        findings += _apply(rule, subject) if formed else blocked
    return findings


def accepting(findings: list[Finding], accepted: Collection[str]) -> list[Finding]:
    """The findings with the faults of the `accepted` rules turned into notes."""
    return [
        Finding(f.rule, "note", f.symptom, f.found, "accepted") if f.verdict == "fault" and f.rule in accepted else f
        for f in findings
    ]


def checkpoint_faults(config: dict[str, Any], tensors: Mapping[str, Readable]) -> list[Finding]:
    """The faults that show without the verifier."""
    return [f for f in lint(Subject(config, tensors, algorithm_of(config))) if f.verdict == "fault"]
