"""How a built draft trades time for memory, without changing what it computes. Called by the training command."""

from typing import Any

from torch import nn

from algorithms.layers import GatedMLP, Recomputing, RMSNorm


def recompute(draft: nn.Module) -> None:
    """Keep what goes into each layer's parts for the backward pass, and compute the rest of them once more there."""
    for module in draft.modules():
        if isinstance(module, Recomputing):
            module.recompute = True


def compile_parts(draft: Any) -> None:
    """Compile norms and MLPs, for any number of rows, and attend through flex attention. Meant for GPUs."""
    draft.flex = True
    for module in draft.modules():
        if isinstance(module, GatedMLP | RMSNorm):
            module.compile(dynamic=True)
