"""From settings to a draft, from a draft to the speculators format, and back (contract sections 1 and 2).

Shape letters: H = verifier width, V = verifier vocabulary, D = draft vocabulary.
"""

from typing import Any

from torch import Tensor

from algorithms.contract import VerifierWeights
from algorithms.eagle3.export import restored_settings, shape_settings, shared_content
from algorithms.exporting import draft_to_target, parameters_of, take_over, tensors_of
from algorithms.peagle.config import Config
from algorithms.peagle.model import Draft, Shape

FLAGS = ("norm_before_residual", "norm_before_fc")
# The server reads neither key of a P-EAGLE checkpoint.
NEVER = {"fc_norm": False, "norm_output": False}


def build(config: Config, verifier: VerifierWeights, draft_to_target_D: Tensor, aux_layers: list[int]) -> Draft:
    """An untrained draft: random projections and mask state, the verifier's head rows and final norm.

    Args:
        draft_to_target_D: from `algorithms.vocabulary.choose`.
        aux_layers: ascending ids of the verifier states that the data holds.

    Raises:
        ValueError: the mask token is not one of the verifier's.
    """
    mask, vocabulary = config.mask_token_id, verifier.config["vocab_size"]
    if mask >= vocabulary:
        raise ValueError(f"mask_token_id = {mask}: the verifier has {vocabulary} tokens. Fix: use one of them")
    settings = shape_settings(config, verifier, draft_to_target_D, aux_layers) | NEVER
    flags = {flag: getattr(config, flag) for flag in FLAGS}
    shape = Shape(**settings, **flags, mask_token_id=mask, own_embedding=config.train_embedding)
    draft = Draft(shape, verifier.embedding_VH, draft_to_target_D)
    take_over(draft, verifier, config.train_head)
    return draft


def export(draft: Draft) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(config.json content, tensors) as the engine reads them; the verifier's name is added by the writer."""
    shape = draft.shape
    flags = {flag: getattr(shape, flag) for flag in FLAGS} | {"mask_token_id": shape.mask_token_id}
    return shared_content(shape, "peagle") | flags, tensors_of(draft)


def restore(content: dict[str, Any], tensors: dict[str, Tensor], verifier: VerifierWeights) -> Draft:
    """The draft that `export` or another tool described. A full-vocabulary draft may leave its head to the verifier.

    Raises:
        KeyError: the config lacks a key. RuntimeError: a tensor is missing, unknown or of another shape.
        ValueError: some layers have a sliding window and some have none.
    """
    own = "embed_tokens.weight" in tensors
    flags = {flag: content.get(flag, False) for flag in FLAGS} | NEVER
    shape = Shape(**restored_settings(content), **flags, mask_token_id=content["mask_token_id"], own_embedding=own)
    draft_to_target_D = draft_to_target(tensors, shape.layer["vocab_size"])
    weights = parameters_of(tensors, verifier.head_VH)
    if own:
        weights["embed_tokens.weight"] = tensors["embed_tokens.weight"]
    weights["mask_hidden"] = weights["mask_hidden"].view(1, 1, -1)
    draft = Draft(shape, weights.get("embed_tokens.weight", verifier.embedding_VH), draft_to_target_D)
    draft.load_state_dict(weights)
    return draft
