"""Whether a draft changes the answers: greedy replies of base and variant compared by token ids.

`compare` is called by `python -m harness.evaluation match`. Two runs of the same verifier round differently where
they feed it another number of rows at once; where its two likeliest tokens nearly tie, that may decide between them.
Such a difference is `benign`; any other is a `fault`: the engine emitted what the verifier would not say.

In float32 on a CPU, one request at a time, rounding decides nothing: there every difference is a fault (`exact`).

How much the two runs round apart is measured on the tokens on which they agree (`rounding`), so that the limit of a
near tie can be held against it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from harness.errors import UserError
from harness.evaluation.settings import MatchSettings
from harness.evaluation.statistics import proportion
from harness.evaluation.turns import turn_of
from harness.sections.evaluate import OutputMatch

CONTEXT_TOKENS = 24
AFTER_TOKENS = 12
CLOSE_NATS = 2.0  # at wider margins rounding is larger, as unlikely candidates move most, and decides nothing

Row = dict[str, Any]


def first_difference(base: Sequence[int], variant: Sequence[int]) -> int | None:
    """Index of the first token that differs, or at which one reply has ended; None for equal replies."""
    for position, (ours, theirs) in enumerate(zip(base, variant, strict=False)):
        if ours != theirs:
            return position
    return None if len(base) == len(variant) else min(len(base), len(variant))


def _token(row: Row, position: int) -> int | None:
    return row["token_ids"][position] if position < len(row["token_ids"]) else None


def _gap_nats(row: Row, position: int, first: int | None, second: int | None) -> float | None:
    """By how much this run preferred one token to another, in nats; None unless both were candidates."""
    if position >= len(row["top_logprobs"]):
        return None
    candidates = dict(row["top_logprobs"][position])
    return candidates[first] - candidates[second] if first in candidates and second in candidates else None


def top_margin_nats(row: Row, position: int) -> float | None:
    """Gap between the two likeliest tokens of a reply at `position`, in nats; None past its end."""
    candidates = row["top_logprobs"][position] if position < len(row["top_logprobs"]) else []
    return abs(candidates[0][1] - candidates[1][1]) if len(candidates) == 2 else None


def verdict(base: Row, variant: Row, position: int, near_tie_nats: float) -> str:
    """`benign` or `fault` for a first difference at `position`; up to there both runs saw the same tokens.

    Benign: the base's two likeliest tokens lie within `near_tie_nats`, and the variant's token is one of them. Three
    may tie, of which a run reports two: then the variant's own gap between the two tokens must be that small as well.
    """
    margin = top_margin_nats(base, position)
    if margin is None or margin >= near_tie_nats:
        return "fault"
    ours, theirs = _token(base, position), _token(variant, position)
    if _gap_nats(base, position, ours, theirs) is not None:
        return "benign"
    reverse = _gap_nats(variant, position, theirs, ours)
    return "benign" if reverse is not None and abs(reverse) < near_tie_nats else "fault"


def difference(base: Row, variant: Row, position: int, near_tie_nats: float) -> dict[str, Any]:
    """One entry of the list `differences`."""
    margin, variant_margin = top_margin_nats(base, position), top_margin_nats(variant, position)
    return {
        "id": base["id"],
        "source": base["source"],
        "position": position,
        "base_token": _token(base, position),
        "draft_token": _token(variant, position),
        "margin_nats": None if margin is None else round(margin, 4),
        "draft_margin_nats": None if variant_margin is None else round(variant_margin, 4),
        "verdict": verdict(base, variant, position, near_tie_nats),
        "context_before": "".join(base["token_texts"][max(position - CONTEXT_TOKENS, 0) : position]),
        "base_after": "".join(base["token_texts"][position : position + AFTER_TOKENS]),
        "draft_after": "".join(variant["token_texts"][position : position + AFTER_TOKENS]),
    }


def _margin_changes(base: Row, variant: Row, up_to: int) -> Iterator[float]:
    """By how much a close margin differs between the two runs, in nats, at each token up to `up_to` and there."""
    for position in range(up_to + 1):
        margin = top_margin_nats(base, position)
        if margin is None or margin >= CLOSE_NATS:
            continue
        first, second = (token for token, _ in base["top_logprobs"][position])
        ours, theirs = (_gap_nats(row, position, first, second) for row in (base, variant))
        if ours is not None and theirs is not None:
            yield abs(ours - theirs)


def rounding(parts: Sequence[tuple[Row, Row, int | None]]) -> dict[str, Any]:
    """How far two runs of one verifier round apart where a choice is close, from the tokens that they share.

    Args:
        parts: replies of base and variant, and where each pair parts.

    Returns:
        JSON object: `tokens` whose margin the base puts below `below_nats` and of which both runs name the same two
        candidates; how much that margin differs between the runs in nats: `p99_nats` and `largest_nats`, None for none.
    """
    found = [
        change
        for base, variant, part in parts
        for change in _margin_changes(base, variant, len(base["token_ids"]) if part is None else part)
    ]
    p99, largest = (float(np.quantile(found, q)) for q in (0.99, 1.0)) if found else (None, None)
    told = {"p99_nats": p99, "largest_nats": largest}
    return {"tokens": len(found), "below_nats": CLOSE_NATS} | {k: v and round(v, 4) for k, v in told.items()}


def compare(base: Sequence[Row], variant: Sequence[Row], settings: MatchSettings) -> dict[str, Any]:
    """All replies compared, matched by id.

    Returns:
        JSON object: `exact` of `total` replies equal, `exact_share` with Wilson's interval; the same by source under
        `sources`, and as `settings.output_match` counts them under `start`; `rounding`; `differences`, `faults`, and
        `missing`: ids that only one run answered, and second turns after different first replies, no part of `total`.

    Raises:
        UserError: no id in common, or the two runs asked different prompts under one id.
    """
    pairs = _pairs(base, variant)
    limit_nats = 0.0 if settings.exact else settings.near_tie_nats
    parts = [(row, other, first_difference(row["token_ids"], other["token_ids"])) for row, other in pairs]
    differences = [difference(row, other, part, limit_nats) for row, other, part in parts if part is not None]
    by_source = {
        source: [part is None for row, _, part in parts if row["source"] == source]
        for source in dict.fromkeys(row["source"] for row, _ in pairs)
    }
    return {
        **_share([part is None for _, _, part in parts]),
        "missing": sorted({row["id"] for row in [*base, *variant]} - {row["id"] for row, _ in pairs}),
        "near_tie_nats": limit_nats,
        "faults": sum(found["verdict"] == "fault" for found in differences),
        "sources": {source: _share(equal) for source, equal in by_source.items()},
        "start": _start(pairs, settings.output_match),
        "rounding": rounding(parts),
        "differences": differences,
    }


def _pairs(base: Sequence[Row], variant: Sequence[Row]) -> list[tuple[Row, Row]]:
    replies = {row["id"]: row for row in variant}
    pairs = [(row, replies[row["id"]]) for row in base if row["id"] in replies]
    if not pairs:
        raise UserError("replies.jsonl: base and variant share no reply. Fix: measure both on the same prompts")
    same = [(row, other) for row, other in pairs if row["prompt_token_ids"] == other["prompt_token_ids"]]
    for row, other in pairs:
        # A second turn follows each run's own first reply.
        if turn_of(row["id"]) == 1 and row["prompt_token_ids"] != other["prompt_token_ids"]:
            raise UserError(f"{row['id']}: base and variant were asked different prompts. Fix: measure both again")
    return same


def _share(equal: Sequence[bool]) -> dict[str, Any]:
    share = proportion(sum(equal), len(equal))
    return {
        "exact": sum(equal),
        "total": len(equal),
        "exact_share": share.value,
        "low": share.low,
        "high": share.high,
    }


def _start(pairs: Sequence[tuple[Row, Row]], chosen: OutputMatch | None) -> dict[str, Any] | None:
    """Greedy replies are the same up to any length limit, so that a shorter one needs no second run."""
    if chosen is None:
        return None
    starts = [
        row["token_ids"][: chosen.first_tokens] == other["token_ids"][: chosen.first_tokens]
        for source in chosen.sources
        for row, other in [pair for pair in pairs if pair[0]["source"] == source][: chosen.limit]
    ]
    if not starts:
        return {"not_run": f"no replies to {' or '.join(chosen.sources)}"}
    return _share(starts) | {"first_tokens": chosen.first_tokens, "prompts": chosen.sources}
