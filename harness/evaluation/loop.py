"""The reference drafting loop over served replies: what a draft should have accepted, beside what it did.

Called by `parity` and `diagnosis`. The verifier's states are recomputed by transformers; the draft is restored from its
checkpoint, drafts at every position of the reply, and the reply is walked as the engine does.

Shape letters: S = tokens of prompt and reply, A = states that the draft reads, H = width, K = draft tokens per step.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import algorithms
from algorithms.contract import Algorithm
from algorithms.exporting import speculative_tokens
from harness.checkpoint import read_checkpoint
from harness.errors import UserError
from harness.evaluation.settings import ParitySettings
from harness.evaluation.statistics import pooled_gap
from harness.evaluation.walk import Steps, inside_reply, walk
from harness.progress import meter
from harness.verifiers.asking import Inputs, LayerStates, load_reference
from harness.verifiers.weights import load_weights

Row = dict[str, Any]


class States:
    """The verifier in transformers, asked for the states that a draft reads."""

    def __init__(self, folder: Path, layers: Sequence[int], dtype: torch.dtype) -> None:
        self.model = load_reference(folder, dtype)
        self.layers, self._states, self._inputs = layers, LayerStates(self.model), Inputs(folder, self.model)

    @torch.no_grad()
    def __call__(self, token_ids: Sequence[int], images: Sequence[str] = ()) -> Tensor:
        """[S, A, H]; id i is the residual stream after i layers (contract section 3). `images` are data URIs."""
        self.model.base_model(**self._inputs(torch.tensor([token_ids]), images), use_cache=False)
        return torch.stack([self._states[layer].cpu() for layer in self.layers], dim=1)  # they may lie on several GPUs

    @torch.no_grad()
    def likeliest(self, token_ids: Sequence[int], images: Sequence[str] = ()) -> list[int]:
        """The verifier's own next token after every token."""
        logits = self.model(**self._inputs(torch.tensor([token_ids]), images), use_cache=False).logits
        return logits[0].argmax(dim=-1).tolist()


def load_draft(folder: Path, verifier: Path, dtype: torch.dtype) -> tuple[Algorithm, nn.Module, dict[str, Any]]:
    """(algorithm, draft in the served dtype, config.json content) of a checkpoint folder.

    Raises:
        UserError: one of both folders is damaged, or the draft is of a verifier of other sizes.
    """
    content, tensors = read_checkpoint(folder)
    algorithm, weights = algorithms.load(content["speculators_model_type"]), load_weights(verifier)
    theirs, layer = weights.config, content["transformer_layer_config"]
    for what, ours, there in (
        ("width", content.get("target_hidden_size") or layer["hidden_size"], theirs["hidden_size"]),
        ("vocabulary", layer["vocab_size"], theirs["vocab_size"]),
    ):
        if ours != there:
            raise UserError(
                f"{folder}: made for a verifier of {what} {ours}, {verifier} has {there}. "
                "Fix: give the verifier that it was trained on"
            )
    draft = algorithm.restore(content, tensors, weights)
    return algorithm, draft.to(dtype).eval(), content


@torch.no_grad()
def accepted_steps(algorithm: Algorithm, draft: nn.Module, row: Row, states_SAH: Tensor, draft_tokens: int) -> Steps:
    """Accepted drafts of each verify step of one reply, by the reference loop."""
    token_ids, prompt_length = [*row["prompt_token_ids"], *row["token_ids"]], len(row["prompt_token_ids"])
    drafts_RK = algorithm.propose(draft, torch.tensor(token_ids), states_SAH, draft_tokens, first=prompt_length - 1)
    return walk(drafts_RK, token_ids, prompt_length)


def predict(rows: Sequence[Row], folder: Path, verifier: Path, dtype: torch.dtype) -> tuple[list[Steps], int]:
    """(accepted drafts of each verify step by reply, K), by the reference loop on the served replies."""
    algorithm, draft, content = load_draft(folder, verifier, dtype)
    draft_tokens = speculative_tokens(content)
    states = States(verifier, algorithm.aux_layers(content), dtype)
    found = []
    with meter("parity", len(rows), "replies") as bar:
        for row in rows:
            states_SAH = states([*row["prompt_token_ids"], *row["token_ids"]], row.get("images", ()))
            found.append(accepted_steps(algorithm, draft, row, states_SAH, draft_tokens))
            bar.advance(1)
    return found, draft_tokens


def served_steps(rows: Sequence[Row]) -> list[Steps]:
    """Accepted drafts of each verify step inside the replies, as the server recorded them.

    Raises:
        UserError: the replies carry no record of their verify steps.
    """
    if any(row["spec"] is None for row in rows) or not rows:
        raise UserError("replies.jsonl: no record of verify steps. Fix: measure the variant with a server that drafts")
    return [inside_reply(row["spec"]["accepted_per_step"], len(row["token_ids"])) for row in rows]


def gap_of(predicted: Sequence[Steps], served: Sequence[Steps], settings: ParitySettings) -> dict[str, Any]:
    """`gap` (length of `predicted` less that of `served`) with its interval, and whether it is `within` the margin.

    Raises:
        UserError: neither side has a verify step.
    """
    sums = [([sum(steps) for steps in side], [len(steps) for steps in side]) for side in (predicted, served)]
    if not all(sum(counts) for _, counts in sums):
        raise UserError(
            "replies.jsonl: no reply is long enough for a verify step. Fix: raise acceptance.max_new_tokens"
        )
    gap = pooled_gap(sums[0], sums[1], settings.bootstrap_resamples, settings.seed)
    margin = settings.margin_tokens
    within = gap.low is None or gap.high is None or (gap.low <= margin and gap.high >= -margin)
    return {"gap": gap.value, "low": gap.low, "high": gap.high, "margin": margin, "within": within}
