"""From settings to a draft, from a draft to the speculators format, and back (contract sections 1 and 2).

Shape letters: H = verifier width, V = verifier vocabulary, D = draft vocabulary.
"""

from typing import Any

import torch
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
    vocabulary_tensors,
)

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def build(config: Config, verifier: VerifierWeights, draft_to_target_D: Tensor, aux_layers: list[int]) -> Draft:
    """An untrained draft: random projections, the verifier's head rows and final norm.

    Args:
        draft_to_target_D: from `algorithms.vocabulary.choose`.
        aux_layers: ascending ids of the verifier states that the data holds.
    """
    shape = Shape(
        layer=layer_config(config, verifier.config, config.architecture, num_aux_hidden_states=len(aux_layers)),
        aux_layers=list(aux_layers),
        target_hidden_size=verifier.config["hidden_size"],
        draft_vocab_size=draft_to_target_D.numel(),
        speculative_tokens=config.speculative_tokens,
        **{flag: getattr(config, flag) for flag in FLAGS},
    )
    draft = Draft(shape, verifier.embedding_VH, draft_to_target_D)
    with torch.no_grad():
        draft.norm.weight.copy_(verifier.final_norm_H)
        draft.lm_head.weight.copy_(verifier.head_VH[draft_to_target_D])
    draft.lm_head.weight.requires_grad_(config.train_head)
    return draft


def aux_layers_of(content: dict[str, Any]) -> list[int]:
    """Ids of the verifier states that a checkpoint reads."""
    return list(content["eagle_aux_hidden_state_layer_ids"])


def export(draft: Draft) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(config.json content, tensors) as the engine reads them; the verifier's name is added by the writer."""
    shape = draft.shape
    vocabulary = shape.layer["vocab_size"]
    content = header("eagle3", shape.speculative_tokens) | {
        "draft_vocab_size": shape.draft_vocab_size,
        "target_hidden_size": shape.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": shape.aux_layers,
        **{flag: getattr(shape, flag) for flag in FLAGS},
        "transformer_layer_config": shape.layer,
    }
    tensors = {name: tensor.detach() for name, tensor in draft.state_dict().items()}
    return content, tensors | vocabulary_tensors(draft.draft_to_target_D, vocabulary)


def restore(content: dict[str, Any], tensors: dict[str, Tensor], verifier: VerifierWeights) -> Draft:
    """The draft that `export` or another tool described; keys that may be absent take the server's defaults.

    A full-vocabulary draft may leave its head to the verifier.

    Raises:
        KeyError: the config lacks a key. RuntimeError: a tensor is missing, unknown or of another shape.
        ValueError: some layers have a sliding window and some have none.
    """
    given = content["transformer_layer_config"]
    layer = {"layer_types": ["full_attention"] * given["num_hidden_layers"]} | given
    one_window(layer)
    shape = Shape(
        layer=layer,
        aux_layers=aux_layers_of(content),
        target_hidden_size=content.get("target_hidden_size") or layer["hidden_size"],
        draft_vocab_size=content["draft_vocab_size"] or layer["vocab_size"],
        speculative_tokens=speculative_tokens(content),
        **{flag: content.get(flag, False) for flag in FLAGS},
    )
    draft_to_target_D = draft_to_target(tensors, layer["vocab_size"])
    draft = Draft(shape, tensors.get("embed_tokens.weight", verifier.embedding_VH), draft_to_target_D)
    draft.load_state_dict(parameters_of(tensors, verifier.head_VH))
    return draft
