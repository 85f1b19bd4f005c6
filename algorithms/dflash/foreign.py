"""Layouts of other projects that become DFlash checkpoints, and what all block drafts of theirs have alike.

Facts: z-lab/dflash `dflash/model.py` (no embedding and no head of its own, values in `dflash_config` before the top
level, `target_layer_ids` counted from 0, sliding layers causal and full ones bidirectional unless `is_causal` says);
sgl-project/SpecForge `modeling/draft/dflash.py`, which saves the same (also with a `draft_vocab_size`).
"""

from dataclasses import dataclass
from typing import Any

from algorithms.dflash.format import FORMAT
from algorithms.exporting import header
from algorithms.foreign import Case, Fields, ForeignError, layout_of_class
from algorithms.foreign_parts import (
    after_layers,
    attention_biases,
    aux_layers_of,
    draft_vocabulary,
    embedding_and_head,
    layer_of,
    plain_floats,
    rotary_buffers,
    spread_layers,
    unfuse,
    vocabulary_tables,
)

OTHER_NETWORK = "another network than the server's"
# The server reads some settings of a source's own config that the speculators format has no keys for.
AS_IT_IS = "serve the source itself: vllm serve VERIFIER --speculative-config "
AS_IT_IS += '\'{"method": "dflash", "model": SOURCE, "num_speculative_tokens": block_size - 1}\''


@dataclass(frozen=True)
class Window:
    """What the rows of a block see: one kind of layer.

    Attributes:
        tokens: width of the sliding window; None for full attention.
        causal: rows see only rows up to themselves.
    """

    tokens: int | None
    causal: bool


def either(case: Case, section: Fields, key: str, default: Any = None) -> Any:
    """A value of the section, or of the top level, or the default."""
    top = case.fields.get(key)
    return section.get(key, default if top is None else top)


def window_of(case: Case, section: Fields, block_size: int) -> Window:
    """One window and one causality for all layers.

    Raises:
        ForeignError: layers differ, or the server's window is another one.
    """
    fields = case.fields
    kinds, explicit = set(fields.get("layer_types", ["full_attention"])), fields.get("is_causal", section.get("causal"))
    tokens, used = fields.get("sliding_window"), fields.get("use_sliding_window", True)
    if len(kinds) > 1:
        said = f"config.json: layer_types: {', '.join(sorted(kinds))}: the format has one causality for all layers"
        raise ForeignError(f"{said}. Fix: {AS_IT_IS}")
    if kinds != {"sliding_attention"}:
        return Window(None, bool(explicit))
    if not used or tokens is None:
        raise ForeignError("config.json: sliding_window: missing or unused, but layers slide. Fix: write it")
    window = Window(tokens, True if explicit is None else bool(explicit))
    if not window.causal and tokens < block_size:
        said = f"config.json: sliding_window = {tokens} in bidirectional blocks of {block_size}: projects differ there"
        raise ForeignError(f"{said}. Fix: convert a draft with a window of {block_size} or more")
    return window


def refuse_other_networks(section: Fields, projector: str | None, scales_are_served: bool = False) -> None:
    """Stop at settings that change the network in a way the server, or the format, does not follow.

    Args:
        projector: what the project calls the head of this algorithm.
        scales_are_served: the server computes them, but reads them in a source's own config alone.
    """
    why = "the format has no key for it" if scales_are_served else "the server computes without it"
    fix = AS_IT_IS if scales_are_served else "convert another draft"
    for key, plain in (("input_embedding_scale", 1.0), ("output_multiplier", 1.0), ("final_logit_softcapping", 0.0)):
        section.only(key, plain, why, fix)
    if section.get("attention_mode", "gqa") != "mha":
        section.only("attention_mode", "gqa", OTHER_NETWORK)
    section.only("pure_draft_prefix_len", 0, OTHER_NETWORK)
    section.only("shift_label", False, "its rows predict other positions")
    if projector is None or section.get("projector_type") is not None:
        section.only("projector_type", projector, OTHER_NETWORK)


def block_content(case: Case, section: Fields, name: str, drafts_of_block: int) -> tuple[dict[str, Any], Window]:
    """The config.json keys of all block drafts; embedding, head and vocabulary are placed.

    Args:
        section: where the project keeps its own keys.
        name: the algorithm.
        drafts_of_block: tokens that a block of the trained size drafts, less that size: 0 or -1.
    """
    plain_floats(case)
    block_size = either(case, section, "block_size")
    if block_size is None:
        raise ForeignError("config.json: block_size: missing. Fix: write the trained value there")
    mask = case.answered(
        "mask_token_id", either(case, section, "mask_token_id"), "mask_token_id", "with the trained mask token"
    )
    layers, found = case.fields.need("num_hidden_layers"), after_layers(either(case, section, "target_layer_ids"))
    aux = aux_layers_of(case, found, "target_layer_ids", spread_layers(case.verifier_layers, layers))
    window, size = window_of(case, section, block_size), draft_vocabulary(case)
    sliding = {} if window.tokens is None else {
        "layer_types": ["sliding_attention"] * layers, "sliding_window": window.tokens, "use_sliding_window": True,
    }  # fmt: skip
    layer = layer_of(case, "qwen3", **sliding)
    unfuse(case, layer)
    rotary_buffers(case, layer)
    attention_biases(case, layer)
    vocabulary_tables(case, size)
    embedding_and_head(case, size, head_of_verifier=True)
    tokens = case.answers.speculative_tokens or block_size + drafts_of_block
    return header(name, tokens) | {
        "draft_vocab_size": size,
        "target_hidden_size": case.verifier.config["hidden_size"],
        "aux_hidden_state_layer_ids": aux,
        "mask_token_id": mask,
        "block_size": block_size,
        "transformer_layer_config": layer,
    }, window


def plain_block(case: Case, name: str, scales_are_served: bool = False) -> tuple[dict[str, Any], Fields]:
    """Content of a draft whose anchor drafts nothing, and the section with its project's own keys."""
    section = case.fields.part("dflash_config")
    refuse_other_networks(section, None, scales_are_served)
    content, window = block_content(case, section, name, -1)
    return content | {"sliding_window_non_causal": not window.causal, "sample_from_anchor": False}, section


def _zlab(case: Case) -> dict[str, Any]:
    content, _ = plain_block(case, "dflash")
    case.ledger.carry(FORMAT.required_tensors(content), FORMAT.optional_tensors(content))
    return content


LAYOUTS = (
    layout_of_class(
        "DFlashDraftModel", "z-lab-dflash", "z-lab DFlash; SpecForge's exports of it are the same", "dflash", _zlab
    ),
)
