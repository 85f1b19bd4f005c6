"""Layouts of other projects that become EAGLE-3 checkpoints.

Facts: SafeAILab/EAGLE `eagle/model/cnets.py` (one `midlayer`, residual from the state before its norm, base 10000 where
the config has none); sgl-project/SpecForge `modeling/draft/llama3_eagle.py` (the same network, `fc_norm`,
`norm_output`, layer ids counted from 0 in `eagle_config`); deepseek-ai/DeepSpec `modeling/eagle3/qwen3` (normed heads,
five states, `target_layer_ids` counted from 0).
"""

from collections.abc import Collection
from typing import Any

from algorithms.eagle3.export import FLAGS
from algorithms.eagle3.format import FORMAT
from algorithms.exporting import header
from algorithms.foreign import Case, ForeignError, ForeignLayout, architecture, layout_of_class
from algorithms.foreign_parts import (
    after_layers,
    attention_biases,
    aux_layers_of,
    draft_vocabulary,
    embedding_and_head,
    layer_of,
    no_window,
    plain_floats,
    rotary_buffers,
    spread_layers,
    unfuse,
    vocabulary_tables,
)

DEFAULT_BASE = 10000.0
# A recurrent draft proposes any number of tokens: what the server's own tests use, unless the source or the user says.
DEFAULT_TOKENS = 3
NESTED = "eagle_aux_hidden_state_layer_ids"


def network(
    case: Case, model_type: str, aux: list[int], base: float | None, flags: tuple[str, ...] = FLAGS
) -> dict[str, Any]:
    """The config.json keys that EAGLE-3 and P-EAGLE have alike; every tensor of theirs but `mask_hidden` is placed.

    Args:
        base: what the project's code takes where the config gives no rope_theta.
        flags: norms that the config may ask for.
    """
    plain_floats(case)
    no_window(case)
    size = draft_vocabulary(case)
    layer = layer_of(case, model_type, base, num_aux_hidden_states=len(aux))
    unfuse(case, layer)
    rotary_buffers(case, layer)
    attention_biases(case, layer)
    vocabulary_tables(case, size)
    embedding_and_head(case, size)
    return {
        "draft_vocab_size": size,
        "target_hidden_size": case.fields.get("target_hidden_size", case.verifier.config["hidden_size"]),
        "eagle_aux_hidden_state_layer_ids": aux,
        "transformer_layer_config": layer,
        **{flag: case.fields.get(flag, False) for flag in flags},
    }


def _finished(case: Case, content: dict[str, Any], tokens: int) -> dict[str, Any]:
    content = header("eagle3", case.answers.speculative_tokens or tokens) | content
    case.ledger.carry(FORMAT.required_tensors(content), FORMAT.optional_tensors(content))
    return content


def usual_layers(count: int) -> list[int]:
    """What SafeAILab's and SpecForge's code takes of a verifier of `count` layers, in the engine's count."""
    return [2, count // 2, count - 3]


def listed_layers(case: Case) -> list[int]:
    """Layer ids of a config in SpecForge's manner.

    It counts layers whose output is taken, from 0, and its lists start at 1. Others write ids of the engine under the
    same key, which start at 2: any list that does not start at 1 has to be confirmed.
    """
    section = case.fields.part("eagle_config")
    section.only("use_aux_hidden_state", True, "such a draft reads one state only")
    listed = section.get(NESTED) or case.fields.get(NESTED)
    case.fields.get("num_aux_hidden_states")
    usual, given = usual_layers(case.verifier_layers), case.answers.aux_layers
    if listed and listed[0] != 1:
        readings = [list(listed), [i + 1 for i in listed]]
        if given is None or list(given) not in readings:
            said = f"config.json: {NESTED} = {listed}: ids of layers counted from 0, or ids of states; both are in use"
            told = " or ".join(",".join(map(str, ids)) for ids in readings)
            raise ForeignError(f"{said}. Fix: pass --aux-layers {told}")
        return aux_layers_of(case, list(given), NESTED, usual)
    return aux_layers_of(case, after_layers(listed or None), NESTED, usual)


def _single_layer(case: Case) -> dict[str, Any]:
    aux = listed_layers(case)
    return _finished(case, network(case, "llama", aux, DEFAULT_BASE), DEFAULT_TOKENS)


def _safeailab(case: Case) -> dict[str, Any]:
    scaling = case.fields.get("rope_scaling", {})
    base = case.fields.get("rope_theta", DEFAULT_BASE)
    if scaling.get("type") == "linear" and base != DEFAULT_BASE:
        said = f"config.json: rope_theta = {base} with linear scaling: SafeAILab's code turns with {DEFAULT_BASE} there"
        raise ForeignError(f"{said}. Fix: write the base that was trained, and pass --from of the project that did")
    return _single_layer(case)


def _deepspec(case: Case) -> dict[str, Any]:
    found = after_layers(case.fields.get("target_layer_ids"))
    case.fields.only("num_hidden_layers", 1, "its further layers read the embedding again, the server's do not")
    aux = aux_layers_of(case, found, "target_layer_ids", spread_layers(case.verifier_layers, 5))
    return _finished(case, network(case, "qwen3", aux, None), case.fields.get("ttt_length", DEFAULT_TOKENS))


def _has_midlayer(config: dict[str, Any], names: Collection[str]) -> bool:
    one = {"layers.0.hidden_norm.weight", "fc.weight", "norm.weight"} <= set(names)
    return one and "mask_hidden" not in names and architecture(config) in ("", "LlamaForCausalLM")


LAYOUTS = (
    ForeignLayout(
        name="safeailab-eagle3",
        project="SafeAILab EAGLE-3",
        becomes="eagle3",
        recognised_by="`LlamaForCausalLM`, `midlayer.*` or `layers.0.*` with `hidden_norm`",
        recognise=_has_midlayer,
        translate=_safeailab,
    ),
    layout_of_class(
        "LlamaForCausalLMEagle3",
        "specforge-eagle3",
        "SpecForge EAGLE-3 (also AngelSlim and others that write its class name)",
        "eagle3",
        _single_layer,
    ),
    layout_of_class("Qwen3Eagle3Model", "deepspec-eagle3", "DeepSpec EAGLE-3", "eagle3", _deepspec),
)
