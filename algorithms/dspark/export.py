"""From settings to a draft, from a draft to the speculators format, and back (contract sections 1 and 2).

Shape letters: D = draft vocabulary.
"""

from typing import Any

from torch import Tensor

from algorithms.contract import VerifierWeights
from algorithms.dflash import export as dflash
from algorithms.dspark.config import Config
from algorithms.dspark.model import Draft, Shape
from algorithms.exporting import take_over, tensors_of

# Our settings and the checkpoint's keys for them.
HEAD_KEYS = {
    "sample_from_anchor": "sample_from_anchor",
    "markov_rank": "markov_rank",
    "confidence_head": "enable_confidence_head",
    "confidence_head_with_markov": "confidence_head_with_markov",
}


def causal_by_kind(layer: dict[str, Any]) -> bool:
    """What the server does unless told otherwise: layers with a sliding window are causal (contract 4.5)."""
    return "sliding_attention" in (layer.get("layer_types") or ())


def is_causal(layer: dict[str, Any]) -> bool:
    """Whether the server lets a row see only rows up to itself."""
    told = layer.get("dflash_config", {}).get("causal")
    return causal_by_kind(layer) if told is None else told


def build(config: Config, verifier: VerifierWeights, draft_to_target_D: Tensor, aux_layers: list[int]) -> Draft:
    """An untrained draft: random projections, the verifier's head rows and final norm, heads that say nothing yet.

    Args:
        draft_to_target_D: from `algorithms.vocabulary.choose`.
        aux_layers: ascending ids of the verifier states that the data holds.

    Raises:
        ValueError: the mask token does not suit the verifier.
    """
    settings = dflash.shape_settings(config, verifier, draft_to_target_D, aux_layers)
    causal = config.blocks_are_causal
    if causal != causal_by_kind(settings["layer"]):
        settings["layer"] |= {"dflash_config": {"causal": causal}}
    heads = {setting: getattr(config, setting) for setting in HEAD_KEYS}
    shape = Shape(**settings, **heads, block_size=config.block_size, causal=causal)
    draft = Draft(shape, verifier.embedding_VH, draft_to_target_D)
    return take_over(draft, verifier, config.train_head)


def export(draft: Draft) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(config.json content, tensors) as the engine reads them; the verifier's name is added by the writer."""
    keys = {key: getattr(draft.shape, setting) for setting, key in HEAD_KEYS.items()}
    # The last key is for other trainers: the server goes by the kind of the layers and by `dflash_config`.
    keys |= {"markov_head_type": "vanilla", "sliding_window_non_causal": not draft.shape.causal}
    return dflash.shared_content(draft, "dspark") | keys, tensors_of(draft)


def restore(content: dict[str, Any], tensors: dict[str, Tensor], verifier: VerifierWeights) -> Draft:
    """The draft that `export` or another tool described; keys that may be absent take the server's defaults.

    A full-vocabulary draft may leave its head to the verifier.

    Raises:
        KeyError: the config lacks a key. RuntimeError: a tensor is missing, unknown or of another shape.
        ValueError: some layers have a sliding window and some have none.
    """
    settings = dflash.restored_settings(content)
    heads = {setting: content.get(key, False) for setting, key in HEAD_KEYS.items()}
    shape = Shape(**settings, **heads, causal=is_causal(settings["layer"]))
    return dflash.load_into(Draft, shape, tensors, verifier)
