"""Other readings of a block draft's checkpoint, in the order in which they are tried (contract 9).

DFlash2 takes `suspects` as it is, DSpark adds its own. See `algorithms.suspects`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from algorithms import suspects as shared
from algorithms.contract import Suspect, VerifierWeights


def block_suspects(
    config: dict[str, Any], tensors: dict[str, Tensor], verifier: VerifierWeights, special_ids: Sequence[int]
) -> Iterator[Suspect]:
    """Those that all block drafts share."""
    yield from shared.layer_ids(config, tensors, "aux_hidden_state_layer_ids", verifier)
    yield from shared.rope(config, tensors, verifier)
    yield from shared.vocabulary(config, tensors)
    yield from shared.mask_tokens(config, tensors, special_ids)
    yield from shared.window(config, tensors)
    yield from shared.head(config, tensors, verifier)


def suspects(
    config: dict[str, Any], tensors: dict[str, Tensor], verifier: VerifierWeights, special_ids: Sequence[int]
) -> Iterator[Suspect]:
    """See `algorithms.contract.Algorithm`."""
    yield from block_suspects(config, tensors, verifier, special_ids)
    yield shared.flipped("block-causality", config, tensors, "sliding_window_non_causal", True)
