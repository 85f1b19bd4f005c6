"""From settings to a draft, from a draft to the speculators format, and back (contract sections 1 and 2).

Shape letters: H = verifier width, V = verifier vocabulary, D = draft vocabulary.
"""

from typing import Any

from torch import Tensor

from algorithms.contract import VerifierWeights
from algorithms.eagle3.config import Config
from algorithms.eagle3.model import Draft, Shape
from algorithms.exporting import (
    draft_to_target,
    header,
    layer_config,
    one_window,
    parameters_of,
    speculative_tokens,
    take_over,
    tensors_of,
)

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def shape_settings(
    config: Any, verifier: VerifierWeights, draft_to_target_D: Tensor, aux_layers: list[int]
) -> dict[str, Any]:
    """The fields of a `Shape` that follow alike from the settings of EAGLE-3 and P-EAGLE."""
    return {
        "layer": layer_config(config, verifier.config, config.architecture, num_aux_hidden_states=len(aux_layers)),
        "aux_layers": list(aux_layers),
        "target_hidden_size": verifier.config["hidden_size"],
        "draft_vocab_size": draft_to_target_D.numel(),
        "speculative_tokens": config.speculative_tokens,
    }


def build(config: Config, verifier: VerifierWeights, draft_to_target_D: Tensor, aux_layers: list[int]) -> Draft:
    """An untrained draft: random projections, the verifier's head rows and final norm.

    Args:
        draft_to_target_D: from `algorithms.vocabulary.choose`.
        aux_layers: ascending ids of the verifier states that the data holds.
    """
    settings = shape_settings(config, verifier, draft_to_target_D, aux_layers)
    shape = Shape(**settings, **{flag: getattr(config, flag) for flag in FLAGS})
    draft = Draft(shape, verifier.embedding_VH, draft_to_target_D)
    take_over(draft, verifier, config.train_head)
    return draft


def aux_layers_of(content: dict[str, Any]) -> list[int]:
    """Ids of the verifier states that a checkpoint reads."""
    return list(content["eagle_aux_hidden_state_layer_ids"])


def shared_content(shape: Shape, name: str) -> dict[str, Any]:
    """The config.json keys that EAGLE-3 and P-EAGLE have alike."""
    return header(name, shape.speculative_tokens) | {
        "draft_vocab_size": shape.draft_vocab_size,
        "target_hidden_size": shape.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": shape.aux_layers,
        "transformer_layer_config": shape.layer,
    }


def export(draft: Draft) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(config.json content, tensors) as the engine reads them; the verifier's name is added by the writer."""
    flags = {flag: getattr(draft.shape, flag) for flag in FLAGS}
    return shared_content(draft.shape, "eagle3") | flags, tensors_of(draft)


def restored_settings(content: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Shape` that a checkpoint of EAGLE-3 or P-EAGLE holds; absent keys take the server's defaults.

    Raises:
        KeyError: the config lacks a key. ValueError: some layers have a sliding window and some have none.
    """
    given = content["transformer_layer_config"]
    layer = {"layer_types": ["full_attention"] * given["num_hidden_layers"]} | given
    one_window(layer)
    return {
        "layer": layer,
        "aux_layers": aux_layers_of(content),
        "target_hidden_size": content.get("target_hidden_size") or layer["hidden_size"],
        "draft_vocab_size": content["draft_vocab_size"] or layer["vocab_size"],
        "speculative_tokens": speculative_tokens(content),
    }


def restore(content: dict[str, Any], tensors: dict[str, Tensor], verifier: VerifierWeights) -> Draft:
    """The draft that `export` or another tool described. A full-vocabulary draft may leave its head to the verifier.

    Raises:
        KeyError, ValueError: see `restored_settings`. RuntimeError: a tensor is missing, unknown or of another shape.
    """
    shape = Shape(**restored_settings(content), **{flag: content.get(flag, False) for flag in FLAGS})
    draft_to_target_D = draft_to_target(tensors, shape.layer["vocab_size"])
    draft = Draft(shape, tensors.get("embed_tokens.weight", verifier.embedding_VH), draft_to_target_D)
    draft.load_state_dict(parameters_of(tensors, verifier.head_VH))
    return draft
