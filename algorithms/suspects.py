"""Other readings of a checkpoint, one for each trap that leaves it loadable: the suspects that drafts share.

Used by the `suspects.py` or `export.py` of each algorithm; `harness.evaluation.diagnosis` drafts with each reading and
names the one that explains what was served. Config and tensors are never changed in place.

Shape letters: V = verifier vocabulary, D = draft vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from algorithms.contract import Suspect, VerifierWeights
from algorithms.exporting import draft_to_target
from algorithms.layers import rope_of

Content = dict[str, Any]
Tensors = dict[str, Tensor]
# RoPE bases that servers take where a checkpoint writes none (contract 1.3).
DEFAULT_THETAS = (10_000.0, 1_000_000.0)
MASKS_MAX = 24


def changed(trap: str, config: Content, tensors: Tensors, **keys: Any) -> Suspect:
    """The checkpoint with other top-level keys."""
    told = ", ".join(f"{key} {value} instead of {config.get(key)}" for key, value in keys.items())
    return Suspect(trap, told, config | keys, tensors)


def with_layer(trap: str, change: str, config: Content, tensors: Tensors, **keys: Any) -> Suspect:
    """The checkpoint with other keys in its layer's config."""
    return Suspect(
        trap, change, config | {"transformer_layer_config": config["transformer_layer_config"] | keys}, tensors
    )


def layer_ids(config: Content, tensors: Tensors, key: str, verifier: VerifierWeights) -> Iterator[Suspect]:
    """States one layer earlier or later: ids that count outputs of layers from 0, or the other way round."""
    ids, count = config[key], verifier.config["num_hidden_layers"]
    for shift in (1, -1):
        moved = [i + shift for i in ids]
        if min(moved) >= 0 and max(moved) <= count:
            yield changed("layer-ids", config, tensors, **{key: moved})


def flipped(trap: str, config: Content, tensors: Tensors, key: str, default: bool) -> Suspect:
    """A flag read as its opposite."""
    return changed(trap, config, tensors, **{key: not config.get(key, default)})


def rope(config: Content, tensors: Tensors, verifier: VerifierWeights) -> Iterator[Suspect]:
    """The verifier's RoPE, no scaling, or a base that servers take by default."""
    ours = config["transformer_layer_config"]["rope_parameters"]
    plain = {"rope_type": "default", "rope_theta": ours["rope_theta"]}
    others = [rope_of(verifier.config) or plain, plain]
    others += [{"rope_type": "default", "rope_theta": theta} for theta in DEFAULT_THETAS]
    tried = [ours]
    for other in others:
        if other not in tried and "rope_theta" in other:
            tried.append(other)
            yield with_layer("rope", f"rope_parameters {other}", config, tensors, rope_parameters=other)


def window(config: Content, tensors: Tensors) -> Iterator[Suspect]:
    """Full attention where a window is written."""
    layer = config["transformer_layer_config"]
    if "sliding_attention" in (layer.get("layer_types") or ()):
        full = ["full_attention"] * layer["num_hidden_layers"]
        change = f"full attention instead of a window of {layer['sliding_window']}"
        yield with_layer("sliding-window", change, config, tensors, layer_types=full, sliding_window=None)


def vocabulary(config: Content, tensors: Tensors) -> Iterator[Suspect]:
    """Other meanings of `d2t`: target ids instead of offsets, the tokens that `t2d` marks, off by one, none."""
    if "d2t" not in tensors:
        return
    d2t_D, size = tensors["d2t"].long(), config["transformer_layer_config"]["vocab_size"]
    row_D = torch.arange(d2t_D.numel())
    readings = {"d2t as target ids": d2t_D - row_D, "d2t one lower": d2t_D - 1, "d2t one higher": d2t_D + 1,
                "d2t left out": torch.zeros_like(d2t_D)}  # fmt: skip
    if "t2d" in tensors and int(tensors["t2d"].sum()) == d2t_D.numel():
        readings = {"the tokens that t2d marks": tensors["t2d"].nonzero().flatten() - row_D} | readings
    for change, offsets_D in readings.items():
        target_D = offsets_D + row_D
        if int(target_D.min()) >= 0 and int(target_D.max()) < size and not torch.equal(offsets_D, d2t_D):
            yield Suspect("vocabulary-offsets", change, config, tensors | {"d2t": offsets_D})


def head(config: Content, tensors: Tensors, verifier: VerifierWeights) -> Iterator[Suspect]:
    """The verifier's own head rows in place of the checkpoint's."""
    ours = tensors.get("lm_head.weight")
    target_D = draft_to_target(tensors, config["transformer_layer_config"]["vocab_size"])
    if ours is None or int(target_D.max()) >= len(verifier.head_VH):
        return
    theirs = verifier.head_VH[target_D]
    if theirs.shape == ours.shape and not torch.equal(theirs.to(ours.dtype), ours):
        yield Suspect("output-head", "the verifier's head rows", config, tensors | {"lm_head.weight": theirs})


def mask_tokens(config: Content, tensors: Tensors, special_ids: Sequence[int]) -> Iterator[Suspect]:
    """Another token as the mask: special ones, then the last of the vocabulary."""
    last = config["transformer_layer_config"]["vocab_size"] - 1
    for token in [*dict.fromkeys([*special_ids, last])][:MASKS_MAX]:
        if token != config["mask_token_id"]:
            yield changed("mask-token", config, tensors, mask_token_id=token)
