"""Optimisers and the learning-rate schedule.

Called by `loop`. Muon moves matrices, AdamW all else, tables of token vectors too; with `adamw` it moves everything.
"""

import math

import torch
from torch import nn

from algorithms.tables import is_table
from harness.sections.training import Training
from harness.training.distributed import is_spread
from harness.training.muon import SpreadMuon
from harness.training.newton_schulz import Muon

ADAM_BETAS = (0.9, 0.95)
# AdamW takes smaller steps than Muon's orthogonal ones for the same progress.
ADAM_SHARE_BESIDE_MUON = 0.3
LEAST_SHARE = 0.02


def make_optimizers(draft: nn.Module, training: Training) -> list[torch.optim.Optimizer]:
    """Optimisers over the trainable parameters; frozen ones get no state."""
    trainable = [parameter for parameter in draft.parameters() if parameter.requires_grad]
    decay, rate = training.weight_decay, training.learning_rate
    if training.optimizer == "adamw":
        return [torch.optim.AdamW(trainable, lr=rate, betas=ADAM_BETAS, weight_decay=decay, fused=True)]
    matrices = [parameter for parameter in trainable if parameter.dim() == 2 and not is_table(parameter)]
    others = [parameter for parameter in trainable if parameter.dim() != 2 or is_table(parameter)]
    muon = SpreadMuon if any(is_spread(matrix) for matrix in matrices) else Muon
    return [
        muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate * ADAM_SHARE_BESIDE_MUON, betas=ADAM_BETAS, weight_decay=0.0, fused=True),
    ]


def rate_share(step: int, total_steps: int, training: Training) -> float:
    """Share of the full learning rate at `step` (from 0): a linear rise, then down to 2 % as `schedule` says.

    It depends on the step alone, so that a resumed training needs no memory of it.
    """
    warmup = max(1, round(total_steps * training.warmup_share))
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, total_steps - warmup)
    left = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}[training.schedule]
    return LEAST_SHARE + (1 - LEAST_SHARE) * left


def set_rate(optimizers: list[torch.optim.Optimizer], training: Training, share: float) -> float:
    """Set every optimiser to `share` of its full rate; returns the main one."""
    for number, optimizer in enumerate(optimizers):
        full = training.learning_rate * (ADAM_SHARE_BESIDE_MUON if number else 1.0)
        for group in optimizer.param_groups:
            group["lr"] = full * share
    return optimizers[0].param_groups[0]["lr"]
