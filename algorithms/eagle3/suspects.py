"""Other readings of an EAGLE-3 checkpoint, in the order in which they are tried (contract 9).

See `algorithms.suspects`.

Shape letters: A = verifier states, H = verifier width.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from algorithms import suspects as shared
from algorithms.contract import Suspect, VerifierWeights

FEATURE_FLAGS = ("norm_before_fc", "fc_norm")


def _feature_tensors(flag: str, count: int, width: int) -> dict[str, Tensor]:
    """Norm weights that change nothing, for a flag whose tensors are not there."""
    if flag == "norm_before_fc":
        return {"input_norm.weight": torch.ones(count * width)}
    return {f"fc_norm.{i}.weight": torch.ones(width) for i in range(count)}


def feature_norms(
    config: dict[str, Any], tensors: dict[str, Tensor], verifier: VerifierWeights, flags: Sequence[str] = FEATURE_FLAGS
) -> Iterator[Suspect]:
    """The verifier's states normed otherwise before they are joined: not at all, whole, or each on its own."""
    count, width = len(config["eagle_aux_hidden_state_layer_ids"]), verifier.config["hidden_size"]
    names = {name for flag in FEATURE_FLAGS for name in _feature_tensors(flag, count, width)}
    bare = {name: tensor for name, tensor in tensors.items() if name not in names}
    for chosen in (None, *flags):
        keys = {flag: flag == chosen for flag in flags}
        if keys == {flag: config.get(flag, False) for flag in flags}:
            continue
        added = _feature_tensors(chosen, count, width) if chosen else {}
        kept = {name: tensors.get(name, tensor) for name, tensor in added.items()}
        yield shared.changed("feature-norms", config, bare | kept, **keys)


def suspects(
    config: dict[str, Any], tensors: dict[str, Tensor], verifier: VerifierWeights, special_ids: Sequence[int]
) -> Iterator[Suspect]:
    """See `algorithms.contract.Algorithm`."""
    yield from shared.layer_ids(config, tensors, "eagle_aux_hidden_state_layer_ids", verifier)
    yield shared.flipped("norm-before-residual", config, tensors, "norm_before_residual", True)
    yield shared.flipped("norm-output", config, tensors, "norm_output", False)
    yield from feature_norms(config, tensors, verifier)
    yield from shared.rope(config, tensors, verifier)
    yield from shared.vocabulary(config, tensors)
    yield from shared.window(config, tensors)
    yield from shared.head(config, tensors, verifier)
