"""Whether the server drafts as the draft was meant to: served acceptance against the reference drafting loop.

`python -m harness.evaluation parity` drafts over the replies that were served (`loop`) and compares. A draft that
drafts worse when served than here was exported, loaded or fed wrongly; one that drafts worse than in training was
written wrongly. Either way `diagnosis` looks for the trap.

Both sides count inside the reply only: the engine also counts drafts it accepts beyond the end of a reply, where nobody
knows what the verifier would have said. So `served_length` here is at most acceptance.json's, and equals it where
nothing but the bonus token lies beyond. Each step counts with its bonus token on both sides.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from harness.evaluation.diagnosis import diagnose
from harness.evaluation.loop import Row, gap_of, predict, served_steps
from harness.evaluation.settings import ParitySettings
from harness.evaluation.walk import Steps, mean_length

# A draft that falls this far short of its validation is looked into, and so is a useless one without a validation. A
# tenth of a token is what the validation of a small training is off by.
EXPECTED_SHARE, LEAST_SHORT_TOKENS = 0.75, 0.1
USELESS_LENGTH = 1.2


def compare(
    rows: Sequence[Row], predicted: Sequence[Steps], draft_tokens: int, settings: ParitySettings
) -> dict[str, Any]:
    """Content of the parity file without its provenance and diagnosis.

    `gap` is predicted less served length, `low` and `high` its bootstrap interval over prompts, both sides resampled
    together; `within` says that the interval meets the margin around 0. Pairing alone would be too sharp:
    transformers and the engine round differently, which moves a hundredth of a token.

    Raises:
        UserError: the replies carry no record of their verify steps.
    """
    served = served_steps(rows)
    benchmarks = {}
    for source in dict.fromkeys(row["source"] for row in rows):
        chosen = [i for i, row in enumerate(rows) if row["source"] == source]
        pair = [[steps[i] for i in chosen] for steps in (predicted, served)]
        benchmarks[source] = _benchmark(pair[0], pair[1], draft_tokens, settings)
    return {"benchmarks": benchmarks, "within": all(found["within"] for found in benchmarks.values())}


def _benchmark(
    predicted: Sequence[Steps], served: Sequence[Steps], draft_tokens: int, settings: ParitySettings
) -> dict[str, Any]:
    found = gap_of(predicted, served, settings)
    return {
        "predicted_length": mean_length(predicted),
        "served_length": mean_length(served),
        **found,
        "predicted_per_position": _rates(predicted, draft_tokens),
        "served_per_position": _rates(served, draft_tokens),
        "replies_with_equal_steps": sum(ours == theirs for ours, theirs in zip(predicted, served, strict=True)),
        "prompts": len(predicted),
    }


def _rates(replies: Sequence[Steps], draft_tokens: int) -> list[float]:
    steps = [accepted for reply in replies for accepted in reply]
    return [sum(accepted > j for accepted in steps) / len(steps) for j in range(draft_tokens)]


def falls_short(served_lengths: Iterable[float], expected_length: float | None) -> bool:
    """Whether a draft does so much worse than on its validation that its checkpoint must be in doubt.

    On every benchmark, that is: text unlike that of its training is foreseen worse by a good draft too.
    """
    best = max(served_lengths)
    if expected_length is None:
        return best < USELESS_LENGTH
    return best - 1 < EXPECTED_SHARE * (expected_length - 1) and expected_length - best > LEAST_SHORT_TOKENS


def run_parity(
    folder: Path,
    verifier: Path,
    rows: Sequence[Row],
    settings: ParitySettings,
    expected_length: float | None = None,
    prompts: Sequence[Row] | None = None,
) -> dict[str, Any]:
    """Predict and compare, and diagnose where something is wrong; see the module's head.

    Args:
        folder: of the draft.
        verifier: folder of its verifier.
        rows: of replies.jsonl.
        settings: slice of the reproduction.
        expected_length: acceptance length on the validation of its training, if it is known.
        prompts: rows of heldout.jsonl, to hold the served prompts against; None where they are not there.
    """
    predicted, draft_tokens = predict(rows, folder, verifier, getattr(torch, settings.dtype))
    found = compare(rows, predicted, draft_tokens, settings)
    short = falls_short((each["served_length"] for each in found["benchmarks"].values()), expected_length)
    diagnosis = None
    if short or not found["within"]:
        diagnosis = diagnose(folder, verifier, rows, predicted, settings, expected_length, prompts)
    return found | {"expected_length": expected_length, "falls_short": short, "diagnosis": diagnosis}
