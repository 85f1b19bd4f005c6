"""From settings to a draft, from a draft to the speculators format, and back (contract sections 1 and 2).

Shape letters: D = draft vocabulary.
"""

from typing import Any

from torch import Tensor

from algorithms.contract import VerifierWeights
from algorithms.dflash.export import (
    load_into,
    restored_settings,
    shape_settings,
    shared_content,
)
from algorithms.dflash2.config import Config
from algorithms.dflash2.model import Draft, Shape
from algorithms.exporting import take_over, tensors_of

SIZES = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def build(config: Config, verifier: VerifierWeights, draft_to_target_D: Tensor, aux_layers: list[int]) -> Draft:
    """An untrained draft that proposes as an untrained DFlash does: convolutions and selector change nothing yet.

    Args:
        draft_to_target_D: every token of the verifier.
        aux_layers: ascending ids of the verifier states that the data holds.

    Raises:
        ValueError: a size does not fit the verifier, or see `algorithms.dflash.export.shape_settings`.
    """
    settings = shape_settings(config, verifier, draft_to_target_D, aux_layers)
    sizes = {name: getattr(config, name) for name in SIZES}
    shape = _checked(Shape(**settings, **sizes, block_size=config.block_size, causal=config.causal))
    return take_over(Draft(shape, verifier.embedding_VH, draft_to_target_D), verifier, config.train_head)


def _checked(shape: Shape) -> Shape:
    width, vocabulary = shape.layer["hidden_size"], shape.layer["vocab_size"]
    if width % shape.conv_group_size:
        size, fit = shape.conv_group_size, max(n for n in range(1, shape.conv_group_size) if width % n == 0)
        raise ValueError(f"conv_group_size = {size}: does not divide the width, {width}. Fix: use {fit}")
    if shape.selector_top_k > vocabulary:
        raise ValueError(f"selector_top_k = {shape.selector_top_k}: of {vocabulary} tokens. Fix: use less")
    if shape.draft_vocab_size != vocabulary:
        said = f"draft_vocab_size = {shape.draft_vocab_size}: of {vocabulary} tokens, but the server maps no ids here"
        raise ValueError(f"{said}. Fix: use a draft of the whole vocabulary")
    return shape


def export(draft: Draft) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(config.json content, tensors) as the engine reads them; the verifier's name is added by the writer."""
    flags = {"sliding_window_non_causal": not draft.shape.causal, "sample_from_anchor": False}
    sizes = {name: getattr(draft.shape, name) for name in SIZES}
    return shared_content(draft, "dflash2") | flags | sizes, tensors_of(draft)


def restore(content: dict[str, Any], tensors: dict[str, Tensor], verifier: VerifierWeights) -> Draft:
    """The draft that `export` or another tool described; keys that may be absent take the server's defaults.

    Raises:
        KeyError, ValueError: a key is missing or a size does not fit. RuntimeError: a tensor is missing, unknown or of
            another shape.
    """
    sizes = {name: content[name] for name in SIZES}
    causal = not content.get("sliding_window_non_causal", True)
    shape = _checked(Shape(**restored_settings(content), **sizes, causal=causal))
    return load_into(Draft, shape, tensors, verifier)
