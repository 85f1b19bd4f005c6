"""Sound drafts of every algorithm, and what the tests of this folder ask the rules about them."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from harness.checkpoint.findings import Finding, Subject, VerifierFacts
from harness.checkpoint.lint import algorithm_of, lint
from harness.checkpoint.reading import in_memory, open_checkpoint
from harness.checkpoint.verifier_facts import read_facts
from harness.verifiers.weights import load_weights
from tests import toy

MASK = 300  # a padding row of the toy vocabulary
SETTINGS: dict[str, dict[str, Any]] = {
    "eagle3": {"norm_before_fc": True},
    "peagle": {"mask_token_id": MASK},
    "dflash": {"mask_token_id": MASK, "block_size": 4},
    "dflash2": {
        "mask_token_id": MASK, "block_size": 4, "draft_vocab_size": toy.VOCABULARY, "selector_rank": 8,
        "selector_top_k": 4,
    },
    "dspark": {"mask_token_id": MASK, "block_size": 3, "markov_rank": 8},
}  # fmt: skip
Parts = dict[str, Any]  # config, layer, section, tensors, verifier, files, tokenizer: what a defect may change
Defect = Callable[[Parts], Any]


@dataclass(frozen=True)
class Sound:
    """A draft without faults, on disk and in memory, and its verifier."""

    draft: Path
    verifier: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    facts: VerifierFacts


def write_draft(folder: Path, verifier: Path, algorithm: str, **settings: Any) -> Path:
    """A draft of the toy verifier in `verifier`, which it names `toy/verifier`; `settings` beside the sound ones."""
    draft = toy.random_draft(load_weights(verifier), algorithm=algorithm, **SETTINGS.get(algorithm, {}) | settings)
    return toy.write_draft(folder, draft, "toy/verifier", algorithm)


def sound(root: Path, algorithm: str) -> Sound:
    """A sound draft in an empty folder."""
    verifier = toy.write_verifier(root / "verifier")
    draft = write_draft(root / "draft", verifier, algorithm)
    config, tensors = open_checkpoint(draft)
    return Sound(draft, verifier, config, in_memory(tensors), read_facts(verifier))


def examined(given: Sound, defect: Defect | None = None, files: tuple[str, ...] = ()) -> list[Finding]:
    """What the rules say once `defect` was done."""
    parts: Parts = {
        "config": copy.deepcopy(given.config),
        "tensors": dict(given.tensors),
        "verifier": copy.deepcopy(given.facts.config),
        "files": ["config.json", "model.safetensors", *files],
        "tokenizer": given.facts.tokenizer,
        "head_VH": given.facts.head_VH,
    }
    parts |= {"layer": parts["config"]["transformer_layer_config"], "section": parts["config"]["speculators_config"]}
    if defect:
        defect(parts)
    facts = replace(given.facts, config=parts["verifier"])
    known = algorithm_of(parts["config"])
    return lint(Subject(parts["config"], parts["tensors"], known, parts["files"], facts, tokenizer=parts["tokenizer"]))


def faults(findings: list[Finding]) -> set[str]:
    """Names of the rules that found one."""
    return {finding.rule for finding in findings if finding.verdict == "fault"}


def put(part: str, **values: Any) -> Defect:
    """Set keys of a part."""
    return lambda parts: parts[part].update(values)


def drop(part: str, *names: str) -> Defect:
    """Leave out keys, or tensors."""

    def defect(parts: Parts) -> None:
        for name in names:
            del parts[part][name]

    return defect


def both(*defects: Defect) -> Defect:
    """One after another."""
    return lambda parts: [defect(parts) for defect in defects]


def change(name: str, how: Callable[[Tensor], Tensor]) -> Defect:
    """Change one tensor."""
    return lambda parts: parts["tensors"].update({name: how(parts["tensors"][name])})


def tensor(name: str, value: Tensor) -> Defect:
    """Put in a tensor."""
    return put("tensors", **{name: value})


def named(name: str) -> Defect:
    """Name another verifier."""
    return lambda parts: parts["section"]["verifier"].update(name_or_path=name)


def tokens(count: int) -> Defect:
    """Write another number of draft tokens."""
    return lambda parts: parts["section"]["proposal_methods"][0].update(speculative_tokens=count)
