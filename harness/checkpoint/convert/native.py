"""Layouts that vLLM serves, but not through the speculators format: they get its own configuration. For `layouts`.

Facts: SafeAILab/EAGLE `eagle/model/cnets1.py` and HASS, which trains the same network otherwise (`fc` over [embedding;
state], no norm in front of the first layer, no head); vLLM 0.32.0 `model_executor/models/llama_eagle.py`, which has
neither a bias in `fc` nor a head of the draft's own.
"""

from collections.abc import Collection
from typing import Any

from algorithms.foreign import Case, ForeignError, ForeignLayout, architecture
from algorithms.foreign_parts import (
    EMBEDDING,
    HEAD,
    attention_biases,
    embedding_and_head,
    layer_of,
    no_window,
    plain_floats,
    rotary_buffers,
    unfuse,
)
from algorithms.shapes import Shapes, attention_shapes, mlp_shapes, norm_shapes

DEFAULT_BASE = 10000.0
DEFAULT_TOKENS = 3
FIRST_NORM = "layers.0.input_layernorm.weight"
# Keys of the speculators format's layer that mean something else, or nothing, in a Llama config.
NOT_LLAMA = ("layer_types", "sliding_window", "use_sliding_window")
# Of experiments with HASS and EAGLE: the server's network has no place for them.
OTHER_NORMS = ("embed_layernorm.weight", "hidden_layernorm.weight", "lm_head_layernorm.weight", FIRST_NORM)


def _shapes(layer: dict[str, Any]) -> Shapes:
    width = layer["hidden_size"]
    shapes: Shapes = {"fc.weight": (width, 2 * width)}
    for index in range(layer["num_hidden_layers"]):
        shapes |= attention_shapes(layer, index, width) | mlp_shapes(layer, index) | norm_shapes(layer, index)
    del shapes[FIRST_NORM]
    return shapes


def _refuse_what_is_not_served(case: Case) -> None:
    for name in OTHER_NORMS:
        if name in case.ledger:
            raise ForeignError(f"tensor {name}: the server has no such norm. Fix: convert a draft without it")
    if case.fields.get("model_type", "llama") != "llama":
        said = f"config.json: model_type = {case.fields.get('model_type')!r}: the server has such drafts of llama alone"
        raise ForeignError(f"{said}. Fix: convert another draft")


def _eagle(case: Case) -> dict[str, Any]:
    """config.json of the draft as a Llama model: the method makes the server's class of it."""
    plain_floats(case)
    no_window(case)
    _refuse_what_is_not_served(case)
    layer = layer_of(case, "llama", DEFAULT_BASE)
    unfuse(case, layer)
    rotary_buffers(case, layer)
    attention_biases(case, layer)
    embedding_and_head(case, layer["vocab_size"])
    if HEAD in case.ledger or HEAD in case.ledger.tensors:
        raise ForeignError(f"tensor {HEAD}: not the verifier's: the server has no other. Fix: convert another draft")
    if layer["hidden_size"] != case.verifier.config["hidden_size"]:
        raise ForeignError("config.json: hidden_size: not the verifier's. Fix: name its own verifier")
    case.ledger.carry(_shapes(layer), {EMBEDDING: (layer["vocab_size"], layer["hidden_size"])})
    kept = {key: value for key, value in layer.items() if key not in NOT_LLAMA}
    return {"architectures": ["LlamaForCausalLM"], **kept}


def _is_eagle(config: dict[str, Any], names: Collection[str]) -> bool:
    fused = "layers.0.self_attn.qkv_proj.weight" in names
    layers = fused or "layers.0.self_attn.q_proj.weight" in names
    plain = layers and "fc.weight" in names and "layers.0.hidden_norm.weight" not in names
    return plain and architecture(config) in ("", "LlamaForCausalLM")


LAYOUTS = (
    ForeignLayout(
        name="safeailab-eagle",
        project="SafeAILab EAGLE-1 and EAGLE-2, HASS",
        becomes="eagle",
        recognised_by="`LlamaForCausalLM`, `fc.weight`, `layers.*`, no `hidden_norm`",
        recognise=_is_eagle,
        translate=_eagle,
        native=True,
    ),
)
