"""Whether the server drafts as the draft was meant to: served acceptance against the reference drafting loop.

`python -m harness.evaluation parity` recomputes the verifier's states for the replies that were served, restores the
draft from its checkpoint, drafts at every position, and walks each reply as the engine does. A draft that drafts worse
when served than here was exported, loaded or fed wrongly.

Both sides count inside the reply only: the engine also counts drafts it accepts beyond the end of a reply, where nobody
knows what the verifier would have said. So `served_length` here lies a little below acceptance.json's.

Shape letters: S = tokens of prompt and reply, A = states that the draft reads, H = width, K = draft tokens per step.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import algorithms
from algorithms.contract import Algorithm
from algorithms.exporting import speculative_tokens
from harness.checkpoint import read_checkpoint
from harness.errors import UserError
from harness.evaluation.settings import ParitySettings
from harness.evaluation.statistics import pooled_gap
from harness.evaluation.walk import Steps, inside_reply, walk
from harness.progress import meter
from harness.verifiers.weights import load_weights

Row = dict[str, Any]


class States:
    """The verifier in transformers, asked for the states that a draft reads."""

    def __init__(self, folder: Path, layers: Sequence[int], dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM

        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        self.model = model.to(self.device).eval()
        self.layers, self.last = layers, self.model.config.get_text_config().num_hidden_layers
        self._before_norm: Tensor | None = None
        self.model.get_decoder().norm.register_forward_pre_hook(self._keep)

    def _keep(self, _: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
        # transformers gives the last state only after the final norm; drafts read the residual stream before it.
        self._before_norm = inputs[0]

    @torch.no_grad()
    def __call__(self, token_ids: Sequence[int]) -> Tensor:
        """[S, A, H]; id i is the residual stream after i layers (contract section 3)."""
        inputs = torch.tensor([token_ids], device=self.device)
        hidden = self.model.get_decoder()(inputs, output_hidden_states=True).hidden_states
        chosen = [self._before_norm if layer == self.last else hidden[layer] for layer in self.layers]
        return torch.stack([state[0] for state in chosen if state is not None], dim=1).cpu()


def load_draft(folder: Path, verifier: Path, dtype: torch.dtype) -> tuple[Algorithm, torch.nn.Module, dict[str, Any]]:
    """(algorithm, draft in the served dtype, config.json content) of a checkpoint folder."""
    content, tensors = read_checkpoint(folder)
    algorithm = algorithms.load(content["speculators_model_type"])
    draft = algorithm.restore(content, tensors, load_weights(verifier))
    return algorithm, draft.to(dtype).eval(), content


def predict(rows: Sequence[Row], folder: Path, verifier: Path, dtype: torch.dtype) -> tuple[list[Steps], int]:
    """(accepted drafts of each verify step by reply, K), by the reference loop on the served replies."""
    algorithm, draft, content = load_draft(folder, verifier, dtype)
    draft_tokens = speculative_tokens(content)
    states = States(verifier, algorithm.aux_layers(content), dtype)
    found = []
    with meter("parity", len(rows), "replies") as bar, torch.no_grad():
        for row in rows:
            token_ids = [*row["prompt_token_ids"], *row["token_ids"]]
            drafts_SK = algorithm.propose(draft, torch.tensor(token_ids), states(token_ids), draft_tokens)
            found.append(walk(drafts_SK, token_ids, len(row["prompt_token_ids"])))
            bar.advance(1)
    return found, draft_tokens


def compare(
    rows: Sequence[Row], predicted: Sequence[Steps], draft_tokens: int, settings: ParitySettings
) -> dict[str, Any]:
    """Content of the parity file without its provenance.

    `gap` is predicted less served length, `low` and `high` its bootstrap interval over prompts, both sides resampled
    together; `within` says that the interval meets the margin around 0. Pairing alone would be too sharp:
    transformers and the engine round differently, which moves a hundredth of a token.

    Raises:
        UserError: the replies carry no record of their verify steps.
    """
    if any(row["spec"] is None for row in rows) or not rows:
        raise UserError("replies.jsonl: no record of verify steps. Fix: measure the variant with a server that drafts")
    served = [inside_reply(row["spec"]["accepted_per_step"], len(row["token_ids"])) for row in rows]
    benchmarks = {}
    for source in dict.fromkeys(row["source"] for row in rows):
        chosen = [i for i, row in enumerate(rows) if row["source"] == source]
        pair = [[steps[i] for i in chosen] for steps in (predicted, served)]
        benchmarks[source] = _benchmark(pair[0], pair[1], draft_tokens, settings)
    return {"benchmarks": benchmarks, "within": all(found["within"] for found in benchmarks.values())}


def _benchmark(
    predicted: Sequence[Steps], served: Sequence[Steps], draft_tokens: int, settings: ParitySettings
) -> dict[str, Any]:
    sums = [([sum(steps) for steps in side], [len(steps) for steps in side]) for side in (predicted, served)]
    if not all(sum(counts) for _, counts in sums):
        raise UserError(
            "replies.jsonl: no reply is long enough for a verify step. Fix: raise acceptance.max_new_tokens"
        )
    gap = pooled_gap(sums[0], sums[1], settings.bootstrap_resamples, settings.seed)
    rates = [_rates(side, draft_tokens) for side in (predicted, served)]
    margin = settings.margin_tokens
    within = gap.low is None or gap.high is None or (gap.low <= margin and gap.high >= -margin)
    return {
        "predicted_length": 1 + sum(sums[0][0]) / sum(sums[0][1]),
        "served_length": 1 + sum(sums[1][0]) / sum(sums[1][1]),
        "gap": gap.value,
        "low": gap.low,
        "high": gap.high,
        "margin": margin,
        "within": within,
        "predicted_per_position": rates[0],
        "served_per_position": rates[1],
        "replies_with_equal_steps": sum(ours == theirs for ours, theirs in zip(predicted, served, strict=True)),
        "prompts": len(predicted),
        "first_suspect": None if within else first_suspect(rates[0], rates[1]),
    }


def _rates(replies: Sequence[Steps], draft_tokens: int) -> list[float]:
    steps = [accepted for reply in replies for accepted in reply]
    return [sum(accepted > j for accepted in steps) / len(steps) for j in range(draft_tokens)]


def first_suspect(predicted_K: Sequence[float], served_K: Sequence[float]) -> str:
    """Where to look first, by the share of the gap that the first position already has (contract section 9)."""
    if sum(served_K) > sum(predicted_K):
        return "served is better: the reference loop or the recomputed states, not the server"
    if predicted_K[0] - served_K[0] > (sum(predicted_K) - sum(served_K)) / (2 * len(predicted_K)):
        return "the first draft already: layer ids, norm flags, vocabulary offsets, prompt tokens"
    return "later drafts only: the state that is fed back (norm_output), or positions (rope)"


def run_parity(folder: Path, verifier: Path, rows: Sequence[Row], settings: ParitySettings) -> dict[str, Any]:
    """Predict and compare; see the module's head."""
    predicted, draft_tokens = predict(rows, folder, verifier, getattr(torch, settings.dtype))
    return compare(rows, predicted, draft_tokens, settings)
