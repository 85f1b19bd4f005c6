"""Other readings of a P-EAGLE checkpoint, in the order in which they are tried (contract 9).

See `algorithms.suspects`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from algorithms import suspects as shared
from algorithms.contract import Suspect, VerifierWeights
from algorithms.eagle3.suspects import feature_norms


def suspects(
    config: dict[str, Any], tensors: dict[str, Tensor], verifier: VerifierWeights, special_ids: Sequence[int]
) -> Iterator[Suspect]:
    """See `algorithms.contract.Algorithm`."""
    yield from shared.layer_ids(config, tensors, "eagle_aux_hidden_state_layer_ids", verifier)
    yield shared.flipped("norm-before-residual", config, tensors, "norm_before_residual", False)
    yield from feature_norms(config, tensors, verifier, ("norm_before_fc",))
    yield from shared.rope(config, tensors, verifier)
    yield from shared.vocabulary(config, tensors)
    yield from shared.mask_tokens(config, tensors, special_ids)
    yield from shared.window(config, tensors)
    yield from shared.head(config, tensors, verifier)
