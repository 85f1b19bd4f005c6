"""What a capture will take, and the proof that its states are the verifier's: before anything costs time.

Called by `run.py`. `estimate` needs no model. `check_states` runs the verifier in transformers on a few captured
replies: states of inner layers must be transformers' states of the same layer and of no other, and the last state,
through the teacher that training uses (final norm and head), must give the verifier's own next-token distribution.

Shape letters: S = positions, L = captured layers, H = width, V = vocabulary, n = number of the verifier's layers.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from algorithms.contract import VerifierWeights
from algorithms.features import Teacher
from harness.capture.store import Document
from harness.errors import UserError
from harness.verifiers.asking import Inputs, LayerStates, load_model, routes

INDEX_BYTES_PER_TOKEN = 9  # token id and mask
ENGINE_BYTES = 2 * 2**30  # interpreter, libraries and activations of a small engine
RELATIVE_ERROR_MAX = {"bfloat16": 0.05, "float32": 1e-3}
DIVERGENCE_MAX_NATS = {"bfloat16": 0.02, "float32": 1e-5}
NEAR_TIE_NATS = {"bfloat16": 0.5, "float32": 1e-3}
# Positions of a mixture of experts where rounding may choose another expert, and with it another token. Of a gpt-oss
# miniature in bfloat16 against itself in float32 it is 0.0008 (2026-11-30).
ROUTED_SHARE_MAX = 0.01


@dataclass(frozen=True)
class Estimate:
    """Upper bounds: every reply as long as it may be."""

    rows: int
    tokens: int
    disk_bytes: int
    memory_bytes: int

    def line(self) -> str:
        """The estimate for people."""
        return (
            f"at most {self.tokens:,} tokens of {self.rows:,} replies, {self.disk_bytes:,} bytes of disk, "
            f"{self.memory_bytes / 2**30:.1f} GiB of memory"
        )


def estimate(lengths: Sequence[int], state_bytes: int, held_bytes: int) -> Estimate:
    """What the rows will take.

    Args:
        lengths: stored positions of each row at its longest.
        state_bytes: bytes of one position's states: layers x width x bytes per number.
        held_bytes: weights, key-value cache and row buffers of the engine.
    """
    tokens = sum(lengths)
    return Estimate(len(lengths), tokens, tokens * (state_bytes + INDEX_BYTES_PER_TOKEN), held_bytes + ENGINE_BYTES)


def refuse_if_short(wanted: Estimate, folder: Path, on_cpu: bool) -> None:
    """Raises `UserError` with the numbers when disk, or on a CPU memory, is short."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    if free_bytes < wanted.disk_bytes:
        raise UserError(
            f"{folder}: {wanted.line()}, but {free_bytes:,} bytes of disk are free. "
            "Fix: free some, or lower data.train rows, data.reply.max_new_tokens or the number of capture.aux_layers"
        )
    available_bytes = psutil.virtual_memory().available
    if on_cpu and available_bytes < wanted.memory_bytes:
        raise UserError(
            f"{folder}: {wanted.line()}, but {available_bytes / 2**30:.1f} GiB of memory are free. "
            "Fix: lower capture.max_num_seqs"
        )


@dataclass(frozen=True)
class StatesCheck:
    """Figures of a passed check.

    Attributes:
        rows, positions: how much was compared.
        relative_error_mean: per inner layer id, |stored - transformers| / |transformers|, mean over positions.
        divergence_mean_nats: KL of the distribution from the stored last state against the verifier's own.
        argmax_differs: positions whose most likely token differs; all of them near ties, but for a few of a mixture of
            experts.
    """

    rows: int
    positions: int
    relative_error_mean: dict[str, float]
    divergence_mean_nats: float
    argmax_differs: int


def check_states(
    documents: Sequence[Document], verifier: Path, weights: VerifierWeights, layer_ids: Sequence[int], dtype: str,
    images: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Compare captured replies with the verifier in transformers.

    Args:
        documents: captured replies, states [S, L, H].
        verifier: its folder.
        weights: what training will take from that folder.
        layer_ids: ascending; the last one is n.
        dtype: of the capture.
        images: of the prompts that have some, as data URIs by document id.

    Returns:
        `StatesCheck` as a dict.

    Raises:
        UserError: the states are not the verifier's; the message gives the figures and names the suspect.
    """
    model = load_model(verifier, dtype=getattr(torch, dtype))
    states, inputs = LayerStates(model), Inputs(verifier, model)
    teacher = Teacher.of(weights, torch.arange(len(weights.head_VH)))
    distances, divergences, differing = [], [], []
    for document in documents:
        asked = inputs(document.token_ids[None], (images or {}).get(document.id, ()))
        hidden_states, logits_SV = _run(model, states, asked)
        distances.append(_distances(document.states, hidden_states))
        ours_SV, theirs_SV = teacher.log_probabilities(document.states[:, -1]), logits_SV.float().log_softmax(-1)
        divergences.append((theirs_SV.exp() * (theirs_SV - ours_SV)).sum(-1))
        differing.append(_lost_nats(ours_SV, theirs_SV))
    distance_LJ = torch.cat(distances, dim=1).mean(dim=1)
    _check_layers(distance_LJ, layer_ids, RELATIVE_ERROR_MAX[dtype])
    divergence, lost_S = float(torch.cat(divergences).mean()), torch.cat(differing)
    _check_logits(divergence, lost_S, distance_LJ[-1], dtype, ROUTED_SHARE_MAX if routes(model) else 0.0)
    errors = {str(layer): round(float(distance_LJ[i, layer]), 6) for i, layer in enumerate(layer_ids[:-1])}
    return asdict(StatesCheck(len(documents), len(lost_S), errors, divergence, int((lost_S > 0).sum())))


@torch.no_grad()
def _run(model: Any, states: LayerStates, inputs: dict[str, Tensor]) -> tuple[list[Tensor], Tensor]:
    """transformers' states (n + 1 times [S, H], the last one after the final norm) and logits [S, V]."""
    output = model(**inputs, output_hidden_states=True, use_cache=False)
    inner = [states[layer] for layer in range(len(output.hidden_states) - 1)]
    return [*inner, output.hidden_states[-1][0]], output.logits[0]


def _distances(states_SLH: Tensor, hidden_states: list[Tensor]) -> Tensor:
    """Relative distance of every captured layer to every one of transformers' states, [L, S, J]."""
    theirs_JSH = torch.stack(hidden_states).float()
    norms_JS = theirs_JSH.norm(dim=-1).clamp_min(1e-12)
    rows = [((states_SH.float() - theirs_JSH).norm(dim=-1) / norms_JS).T for states_SH in states_SLH.unbind(1)]
    return torch.stack(rows)


def _lost_nats(ours_SV: Tensor, theirs_SV: Tensor) -> Tensor:
    """What the verifier thinks our most likely token is short of its own, in nats; 0 where they are the same, [S]."""
    return theirs_SV.amax(-1) - theirs_SV.gather(1, ours_SV.argmax(-1, keepdim=True))[:, 0]


def _check_layers(distance_LJ: Tensor, layer_ids: Sequence[int], error_max: float) -> None:
    for i, layer in enumerate(layer_ids[:-1]):
        nearest = int(distance_LJ[i].argmin())
        if nearest != layer and distance_LJ[i, nearest] <= error_max:
            raise UserError(
                f"preflight: states stored as layer {layer} are the verifier's layer {nearest} (relative error "
                f"{distance_LJ[i, nearest]:.1e}, against {distance_LJ[i, layer]:.1e}). Suspect: layer ids are shifted. "
                "Fix: report this; training on such states would be worthless"
            )
        if distance_LJ[i, layer] > error_max:
            raise UserError(
                f"preflight: states of layer {layer} differ from the verifier's by {distance_LJ[i, layer]:.1e}, "
                f"allowed {error_max:.0e}. Suspect: dtype, positions, or rows of another request. Fix: report this"
            )


def _check_logits(
    divergence_nats: float, lost_S: Tensor, last_distance_J: Tensor, dtype: str, share_max: float
) -> None:
    astray = float((lost_S > NEAR_TIE_NATS[dtype]).float().mean())
    if divergence_nats <= DIVERGENCE_MAX_NATS[dtype] and astray <= share_max:
        return
    nearest = int(last_distance_J.argmin())
    if last_distance_J[nearest] > RELATIVE_ERROR_MAX[dtype]:
        suspect = "the final norm's weight, its epsilon or form, or the output head"
    elif nearest == len(last_distance_J) - 1:
        suspect = "the last states already went through the final norm"
    else:
        suspect = f"the last states are layer {nearest}'s"
    raise UserError(
        f"preflight: stored last states give another distribution than the verifier: divergence {divergence_nats:.1e} "
        f"nats (allowed {DIVERGENCE_MAX_NATS[dtype]:.0e}), worst token {float(lost_S.max()):.2f} nats (allowed "
        f"{NEAR_TIE_NATS[dtype]}, beyond it {astray:.1%} of all). Suspect: {suspect}. "
        "Fix: report this; training on such states would be worthless"
    )
