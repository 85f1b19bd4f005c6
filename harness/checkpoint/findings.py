"""What a lint rule is, what it sees and what it says. Used by `lint` and the tables of rules.

Shape letters: V = verifier vocabulary, H = verifier width, D = draft vocabulary.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from algorithms.contract import Algorithm, CheckpointFormat
from harness.checkpoint.stored import Readable, values_of

SAMPLED_VALUES = 1 << 24
Verdict = Literal["fault", "note"]
# (verdict, what was found, what to do)
Saying = tuple[Verdict, str, str]


def fault(found: str, fix: str) -> Saying:
    """Something that costs acceptance, or stops the server."""
    return "fault", found, fix


def note(found: str, fix: str) -> Saying:
    """Something worth knowing."""
    return "note", found, fix


@dataclass(frozen=True)
class VerifierFacts:
    """What the rules compare a draft with.

    Attributes:
        config: the verifier's text config.
        architectures: of its config.json.
        head_VH: output head; None where only the config is known.
        embedding_VH: input embedding; None where only the config is known.
        stop_tokens: text of every token that ends a reply or a turn, by id.
        tokenizer: what turns text into ids, see `verifier_facts.tokenizer_of`; None without one.
    """

    config: dict[str, Any]
    architectures: list[str]
    head_VH: Tensor | None = None
    embedding_VH: Tensor | None = None
    stop_tokens: dict[int, str] = field(default_factory=dict)
    tokenizer: dict[str, Any] | None = None


@dataclass(frozen=True)
class Subject:
    """A draft under examination; the properties hold once its config is known to be well formed.

    Attributes:
        config: config.json content.
        tensors: by name, in memory or stored.
        known: the algorithm that the config names, if the project has it.
        files: names of the files in its folder.
        facts: of its verifier, if one was given.
        path: of its folder, or its hub id.
        tokenizer: what stands in its folder, see `verifier_facts.tokenizer_of`; None without one.
        values_max: where a rule reads more values than this, it reads `SAMPLED_VALUES` of them; None for all.
    """

    config: dict[str, Any]
    tensors: Mapping[str, Readable]
    known: Algorithm | None
    files: list[str] = field(default_factory=list)
    facts: VerifierFacts | None = None
    path: str = ""
    tokenizer: dict[str, Any] | None = None
    values_max: int | None = None

    @property
    def format(self) -> CheckpointFormat | None:
        """What the algorithm says of its checkpoints."""
        return self.known.format if self.known else None

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm, for rules that run after `algorithm` passed."""
        assert self.known is not None
        return self.known

    @property
    def verifier(self) -> VerifierFacts:
        """The verifier, for rules that need one."""
        assert self.facts is not None
        return self.facts

    @property
    def layer(self) -> dict[str, Any]:
        """`transformer_layer_config`."""
        return self.config["transformer_layer_config"]

    @property
    def draft_vocabulary(self) -> int:
        """Number of tokens that the draft can propose."""
        return self.config.get("draft_vocab_size") or self.layer["vocab_size"]

    @property
    def is_reduced(self) -> bool:
        """Whether draft ids differ from the verifier's."""
        return self.draft_vocabulary != self.layer["vocab_size"]

    @cached_property
    def targets_D(self) -> Tensor | None:
        """Target id of each draft id; None without a reduced vocabulary or its table."""
        table = self.tensors.get("d2t")
        if not self.is_reduced or table is None or len(table.shape) != 1:
            return None
        return table[:].long() + torch.arange(table.shape[0])

    def share(self, *tensors: Readable) -> float:
        """Part of the values of these tensors that may be read."""
        total = sum(map(values_of, tensors))
        return 1.0 if self.values_max is None or total <= self.values_max else SAMPLED_VALUES / total

    @cached_property
    def required(self) -> dict[str, tuple[int, ...]]:
        """Shape by name of the tensors that must be there."""
        return self.format.required_tensors(self.config) if self.format else {}

    @cached_property
    def optional(self) -> dict[str, tuple[int, ...]]:
        """Shape by name of the tensors that may be there."""
        return self.format.optional_tensors(self.config) if self.format else {}


@dataclass(frozen=True)
class Rule:
    """One trap.

    Attributes:
        name: words joined by `-`.
        symptom: what the trap does to a draft, in a few words.
        check: says what it found, or nothing.
        needs_verifier: it compares with the verifier's folder.
    """

    name: str
    symptom: str
    check: Callable[[Subject], Iterable[Saying]]
    needs_verifier: bool = False


@dataclass(frozen=True)
class Finding:
    """One line of the linter's answer."""

    rule: str
    verdict: Literal["fault", "note", "ok", "not checked"]
    symptom: str
    found: str = ""
    fix: str = ""
