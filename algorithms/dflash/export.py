"""From settings to a draft, from a draft to the speculators format, and back (contract sections 1 and 2).

The parts that DFlash-2 and DSpark share take the settings or the draft and leave what is theirs to them.

Shape letters: H = verifier width, V = verifier vocabulary, D = draft vocabulary.
"""

from typing import Any, TypeVar

from torch import Tensor

from algorithms.contract import VerifierWeights
from algorithms.dflash.config import Config
from algorithms.dflash.model import Backbone, Shape
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
from algorithms.settings import MaskedConfig

Draft = TypeVar("Draft", bound=Backbone)


def shape_settings(
    config: MaskedConfig, verifier: VerifierWeights, draft_to_target_D: Tensor, aux_layers: list[int]
) -> dict[str, Any]:
    """The fields of a `Shape` that follow from the settings alike in all block drafts.

    Raises:
        ValueError: the mask token is not one of the verifier's, or its embedding is empty.
    """
    mask, vocabulary = config.mask_token_id, verifier.config["vocab_size"]
    if mask >= vocabulary:
        raise ValueError(f"mask_token_id = {mask}: the verifier has {vocabulary} tokens. Fix: use one of them")
    if not bool(verifier.embedding_VH[mask].any()):
        raise ValueError(f"mask_token_id = {mask}: its embedding is all zeros. Fix: use a token with an embedding")
    return {
        "layer": layer_config(config, verifier.config, "qwen3"),
        "aux_layers": list(aux_layers),
        "target_hidden_size": verifier.config["hidden_size"],
        "draft_vocab_size": draft_to_target_D.numel(),
        "speculative_tokens": config.speculative_tokens,
        "mask_token_id": mask,
    }


def build(config: Config, verifier: VerifierWeights, draft_to_target_D: Tensor, aux_layers: list[int]) -> Backbone:
    """An untrained draft: random projections, the verifier's head rows and final norm.

    Args:
        draft_to_target_D: from `algorithms.vocabulary.choose`.
        aux_layers: ascending ids of the verifier states that the data holds.

    Raises:
        ValueError: see `shape_settings`.
    """
    settings = shape_settings(config, verifier, draft_to_target_D, aux_layers)
    shape = Shape(**settings, block_size=config.block_size, causal=config.causal)
    return take_over(Backbone(shape, verifier.embedding_VH, draft_to_target_D), verifier, config.train_head)


def aux_layers_of(content: dict[str, Any]) -> list[int]:
    """Ids of the verifier states that a checkpoint reads."""
    return list(content["aux_hidden_state_layer_ids"])


def shared_content(draft: Backbone, name: str) -> dict[str, Any]:
    """The config.json keys that all block drafts have."""
    shape = draft.shape
    return header(name, shape.speculative_tokens) | {
        "draft_vocab_size": shape.draft_vocab_size,
        "target_hidden_size": shape.target_hidden_size,
        "aux_hidden_state_layer_ids": shape.aux_layers,
        "mask_token_id": shape.mask_token_id,
        "block_size": shape.block_size,
        "transformer_layer_config": shape.layer,
    }


def export(draft: Backbone) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(config.json content, tensors) as the engine reads them; the verifier's name is added by the writer."""
    flags = {"sliding_window_non_causal": not draft.shape.causal, "sample_from_anchor": False}
    return shared_content(draft, "dflash") | flags, tensors_of(draft)


def restored_settings(content: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Shape` that a checkpoint holds alike for all block drafts.

    Raises:
        KeyError: the config lacks a key. ValueError: some layers have a sliding window and some have none.
    """
    given = content["transformer_layer_config"]
    # Whatever the file says, the server's layers are of the Qwen3 kind.
    layer = {"layer_types": ["full_attention"] * given["num_hidden_layers"]} | given | {"model_type": "qwen3"}
    one_window(layer)
    tokens = speculative_tokens(content)
    return {
        "layer": layer,
        "aux_layers": list(content["aux_hidden_state_layer_ids"]),
        "target_hidden_size": content.get("target_hidden_size") or layer["hidden_size"],
        "draft_vocab_size": content.get("draft_vocab_size") or layer["vocab_size"],
        "speculative_tokens": tokens,
        "mask_token_id": content["mask_token_id"],
        "block_size": content.get("block_size", tokens + 1),
    }


def load_into(kind: type[Draft], shape: Shape, tensors: dict[str, Tensor], verifier: VerifierWeights) -> Draft:
    """A draft of that shape with the weights of a checkpoint.

    Raises:
        RuntimeError: a tensor is missing, unknown or of another shape.
    """
    table_D = draft_to_target(tensors, shape.layer["vocab_size"])
    draft = kind(shape, tensors.get("embed_tokens.weight", verifier.embedding_VH), table_D)
    draft.load_state_dict(parameters_of(tensors, verifier.head_VH))
    return draft


def restore(content: dict[str, Any], tensors: dict[str, Tensor], verifier: VerifierWeights) -> Backbone:
    """The draft that `export` or another tool described; keys that may be absent take the server's defaults.

    A full-vocabulary draft may leave its head to the verifier.

    Raises:
        KeyError, ValueError: see `restored_settings`. RuntimeError: see `load_into`.
    """
    shape = Shape(**restored_settings(content), causal=not content.get("sliding_window_non_causal", True))
    return load_into(Backbone, shape, tensors, verifier)
