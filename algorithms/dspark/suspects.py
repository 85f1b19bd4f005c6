"""Other readings of a DSpark checkpoint, in the order in which they are tried (contract 4.7, 9).

See `algorithms.suspects`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from algorithms import suspects as shared
from algorithms.contract import Suspect, VerifierWeights
from algorithms.dflash.suspects import block_suspects
from algorithms.dspark.export import is_causal


def suspects(
    config: dict[str, Any], tensors: dict[str, Tensor], verifier: VerifierWeights, special_ids: Sequence[int]
) -> Iterator[Suspect]:
    """See `algorithms.contract.Algorithm`."""
    yield from block_suspects(config, tensors, verifier, special_ids)
    yield shared.flipped("block-layout", config, tensors, "sample_from_anchor", False)
    causal = is_causal(config["transformer_layer_config"])
    change = "bidirectional blocks instead of causal ones" if causal else "causal blocks instead of bidirectional ones"
    yield shared.with_layer("block-causality", change, config, tensors, dflash_config={"causal": not causal})
