"""Names the trap behind a draft that is served worse than it should be: facts first, then other readings of it.

Called by `parity` where predicted and served acceptance differ, or both fall short of the draft's validation. Facts
show in the files: what the linter finds, tokens per step, served prompts. Then the draft is restored once for each
`Suspect` of its algorithm, and once in the other precision, and drafts over the same replies:

- where the loop predicts other acceptance than was served, the reading under which it predicts what was served, step
  by step, is how the server takes the checkpoint;
- where both are low, the reading under which acceptance jumps is how the draft was trained.

What no reading explains is looked for in the replies: another verifier's are not what this verifier would say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import algorithms
from algorithms.contract import Algorithm, Suspect, VerifierWeights
from algorithms.exporting import speculative_tokens
from harness.checkpoint import read_checkpoint
from harness.checkpoint.findings import Subject
from harness.checkpoint.lint import lint
from harness.checkpoint.verifier_facts import read_facts
from harness.evaluation.loop import Row, States, accepted_steps, gap_of, served_steps
from harness.evaluation.match import first_difference
from harness.evaluation.replies import Prompts, by_source
from harness.evaluation.settings import ParitySettings
from harness.evaluation.walk import Steps, mean_length
from harness.jsonfile import read_object
from harness.progress import log
from harness.verifiers.weights import load_weights

REPLIES_MAX = 12
JUMP_TOKENS = 0.2  # a reading that gains less explains nothing
EQUAL_SHARE_MIN = 0.25  # of replies, step by step: over half where loop and server are known to agree
OWN_SHARE_MIN = 0.9  # of a reply's tokens that the verifier itself would say; rounding decides a few near ties
OTHER_DTYPE = {"bfloat16": "float32", "float32": "bfloat16"}


@dataclass(frozen=True)
class Case:
    """The draft in question, and some of its replies.

    Attributes:
        algorithm, content, tensors: the draft, as its checkpoint is written.
        weights: of its verifier, whose folder is `verifier`.
        rows: replies of every source, a few of each.
        served, predicted: accepted drafts of each verify step of those replies, by the server and by the loop.
    """

    algorithm: Algorithm
    content: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    weights: VerifierWeights
    verifier: Path
    rows: list[Row]
    served: list[Steps]
    predicted: list[Steps]
    settings: ParitySettings


@dataclass(frozen=True)
class Reading:
    """A suspect and what the reference loop accepts under it.

    `gap` is its acceptance length less the served one, `gain` less that of the checkpoint as it is written;
    `equal_replies` counts replies with the very steps that were served; `error` says why it cannot be read so.
    """

    trap: str
    change: str
    length: float | None = None
    gap: float | None = None
    meets_served: bool = False
    gain: float | None = None
    jumps: bool = False
    equal_replies: int = 0
    error: str | None = None


def diagnose(
    folder: Path,
    verifier: Path,
    rows: Sequence[Row],
    predicted: Sequence[Steps],
    settings: ParitySettings,
    expected_length: float | None = None,
    prompts: Sequence[Row] | None = None,
) -> dict[str, Any]:
    """The first trap that explains what was served, with the figures; printed line by line as well.

    Args:
        folder, verifier, rows, settings, expected_length, prompts: see `parity.run_parity`.
        predicted: accepted drafts of each verify step by reply.

    Returns:
        JSON object: `trap`, `said`, and `tried`, every reading with its figures (empty where a fact explains it).
    """
    case = _case(folder, verifier, rows, predicted, settings)
    lengths = f"served {mean_length(case.served):.2f}, reference loop {mean_length(case.predicted):.2f}"
    expected = "" if expected_length is None else f", validation {expected_length:.2f}"
    log(f"diagnosis of {folder} over {len(case.rows)} replies: {lengths}{expected}")
    fact = next(_facts(folder, case, prompts), None)
    readings = [] if fact else _read_otherwise(case)
    trap, said = fact or _explained(case, readings) or _unexplained(case)
    log(f"diagnosis: {trap}: {said}")
    return {"trap": trap, "said": said, "replies": len(case.rows), "tried": [asdict(reading) for reading in readings]}


def _case(
    folder: Path, verifier: Path, rows: Sequence[Row], predicted: Sequence[Steps], settings: ParitySettings
) -> Case:
    content, tensors = read_checkpoint(folder)
    groups, place = by_source(rows), {id(row): i for i, row in enumerate(rows)}
    each = max(1, REPLIES_MAX // len(groups))
    chosen = [row for group in groups.values() for row in group[:each]]
    served = served_steps(rows)
    at = [place[id(row)] for row in chosen]
    algorithm = algorithms.load(content["speculators_model_type"])
    return Case(
        algorithm, content, tensors, load_weights(verifier), verifier, chosen,
        [served[i] for i in at], [predicted[i] for i in at], settings,
    )  # fmt: skip


def _facts(folder: Path, case: Case, prompts: Sequence[Row] | None) -> Iterator[tuple[str, str]]:
    """(trap, what is wrong) of everything that shows without drafting."""
    files = sorted(path.name for path in folder.iterdir())
    subject = Subject(case.content, case.tensors, case.algorithm, files, read_facts(case.verifier))
    for finding in lint(subject):
        if finding.verdict == "fault":
            yield finding.rule, f"{finding.found}. Fix: {finding.fix}"
    written = speculative_tokens(case.content)
    drafted = max((tokens for row in case.rows for tokens in row["spec"]["drafted_per_step"]), default=written)
    if drafted != written:
        yield "draft-tokens", f"the server drafts {drafted} tokens a step, the checkpoint says {written}"
    if prompts is not None:
        yield from _prompt_facts(case, prompts)


def _prompt_facts(case: Case, prompts: Sequence[Row]) -> Iterator[tuple[str, str]]:
    meant = Prompts(prompts, case.verifier, case.settings.system_prompt).token_ids
    for row in case.rows:
        if row["id"] not in meant:
            continue
        part = first_difference(row["prompt_token_ids"], meant[row["id"]])
        if part is not None:
            lengths = f"{len(row['prompt_token_ids'])} tokens, {len(meant[row['id']])} as in training"
            yield "chat-template", f"{row['id']}: the served prompt has {lengths}; they part at token {part}"
            return


def _special_ids(verifier: Path) -> list[int]:
    """Ids of the tokenizer's special tokens; none where the folder has no tokenizer.json."""
    if not (verifier / "tokenizer.json").is_file():
        return []
    return [token["id"] for token in read_object(verifier / "tokenizer.json").get("added_tokens") or []]


def _read_otherwise(case: Case) -> list[Reading]:
    """Every suspect of the algorithm, then the other precision, over the same replies."""
    suspects = list(case.algorithm.suspects(case.content, case.tensors, case.weights, _special_ids(case.verifier)))
    dtype, other = case.settings.dtype, OTHER_DTYPE[case.settings.dtype]
    layers = sorted({i for suspect in suspects for i in case.algorithm.aux_layers(suspect.config)}
                    | set(case.algorithm.aux_layers(case.content)))  # fmt: skip
    states = _all_states(case, layers, dtype)
    readings = [_reading(case, suspect, states, layers, dtype) for suspect in suspects]
    as_written = Suspect("dtype", f"{other} instead of {dtype}", case.content, case.tensors)
    return [*readings, _reading(case, as_written, _all_states(case, layers, other), layers, other)]


def _all_states(case: Case, layers: list[int], dtype: str) -> list[torch.Tensor]:
    states = States(case.verifier, layers, getattr(torch, dtype))
    return [states([*row["prompt_token_ids"], *row["token_ids"]], row.get("images", ())) for row in case.rows]


def _reading(case: Case, suspect: Suspect, states: Sequence[torch.Tensor], layers: list[int], dtype: str) -> Reading:
    """What the reference loop accepts where the checkpoint is read as `suspect`."""
    kind, reading = case.algorithm, Reading(suspect.trap, suspect.change)
    try:
        draft = kind.restore(suspect.config, suspect.tensors, case.weights).to(getattr(torch, dtype)).eval()
        tokens, read = speculative_tokens(suspect.config), [layers.index(i) for i in kind.aux_layers(suspect.config)]
        steps = [
            accepted_steps(kind, draft, row, state_SLH[:, read], tokens)
            for row, state_SLH in zip(case.rows, states, strict=True)
        ]
    except (RuntimeError, ValueError, KeyError, IndexError) as error:
        return replace(reading, error=str(error).splitlines()[0][:200])
    served, written = gap_of(steps, case.served, case.settings), gap_of(steps, case.predicted, case.settings)
    gain, sure = written["gap"], written["low"] is None or written["low"] > case.settings.margin_tokens
    found = replace(
        reading, length=mean_length(steps), gap=served["gap"], meets_served=served["within"], gain=gain,
        jumps=gain > JUMP_TOKENS and sure,
        equal_replies=sum(ours == theirs for ours, theirs in zip(steps, case.served, strict=True)),
    )  # fmt: skip
    log(f"  {found.trap}: {found.change}: {found.length:.2f}, {found.gap:+.2f} against the served length")
    return found


def _explained(case: Case, readings: Sequence[Reading]) -> tuple[str, str] | None:
    """(trap, what it explains) of the reading that fits best, the first of equals; None if none does."""
    written = gap_of(case.predicted, case.served, case.settings)
    lengths = f"acceptance length {mean_length(case.served):.2f} served, {mean_length(case.predicted):.2f} as written"
    enough = EQUAL_SHARE_MIN * len(case.rows)
    meeting = [reading for reading in readings if reading.meets_served and reading.equal_replies >= enough]
    if meeting and not written["within"]:
        best = max(meeting, key=lambda reading: reading.equal_replies)
        agreeing = f"{best.equal_replies} of {len(case.rows)} replies step by step"
        return best.trap, f"{lengths}, {best.length:.2f} with {best.change} ({agreeing}): the server reads it so"
    jumping = [reading for reading in readings if reading.jumps and (reading.gap or 0.0) > JUMP_TOKENS]
    if jumping:
        best = max(jumping, key=lambda reading: reading.length or 0.0)
        return best.trap, f"{lengths}, {best.length:.2f} with {best.change}: the draft was trained so"
    return None


def _unexplained(case: Case) -> tuple[str, str]:
    """Another verifier's replies, or where to look next, by the shape of the gap (contract section 9)."""
    states = States(case.verifier, [0], getattr(torch, case.settings.dtype))
    own = total = 0
    for row in case.rows:
        asked = row["prompt_token_ids"]
        said = states.likeliest([*asked, *row["token_ids"]], row.get("images", ()))[len(asked) - 1 : -1]
        own += sum(ours == theirs for ours, theirs in zip(said, row["token_ids"], strict=True))
        total += len(said)
    if own < OWN_SHARE_MIN * total:
        return "verifier", f"only {own / total:.0%} of the replies' tokens are what {case.verifier.name} would say"
    return "unknown", f"no other reading explains it; {shape_of_gap(case.predicted, case.served)}"


def shape_of_gap(predicted: Sequence[Steps], served: Sequence[Steps]) -> str:
    """Where to look next, by the share of the gap that the first draft of a step already has."""
    ours, theirs = mean_length(predicted), mean_length(served)
    first = [sum(step > 0 for steps in side for step in steps) / sum(map(len, side)) for side in (predicted, served)]
    if theirs >= ours:
        return "served is no worse than the reference loop: look at the training data and the checkpoint"
    if first[0] - first[1] > (ours - theirs) / 4:
        return "the first draft is wrong already: look at states, tokens and positions that the server feeds"
    return "later drafts only: look at the state that is fed back, and at positions"
