"""Names and shapes of the tensors that drafts share (contract 2.1 to 2.3): what the `format.py` of each is made of."""

from typing import Any

Shapes = dict[str, tuple[int, ...]]


def attention_shapes(layer: dict[str, Any], index: int, input_width: int) -> Shapes:
    """Projections of one layer, head norms where its architecture has them, biases where the config asks for them.

    Args:
        layer: `transformer_layer_config`.
        input_width: of the projections: the first layer of some drafts reads more than the draft's width.
    """
    width, head = layer["hidden_size"], layer["head_dim"]
    query, key = layer["num_attention_heads"] * head, layer["num_key_value_heads"] * head
    shapes: Shapes = {
        "q_proj.weight": (query, input_width),
        "k_proj.weight": (key, input_width),
        "v_proj.weight": (key, input_width),
        "o_proj.weight": (width, query),
    }
    if layer["model_type"] == "qwen3":
        shapes |= {"q_norm.weight": (head,), "k_norm.weight": (head,)}
    if layer.get("attention_bias"):
        shapes |= {"q_proj.bias": (query,), "k_proj.bias": (key,), "v_proj.bias": (key,)}
        if layer["model_type"] == "llama":
            shapes["o_proj.bias"] = (width,)
    return {f"layers.{index}.self_attn.{name}": shape for name, shape in shapes.items()}


def mlp_shapes(layer: dict[str, Any], index: int) -> Shapes:
    """The gated MLP of one layer."""
    width, inner = layer["hidden_size"], layer["intermediate_size"]
    shapes: Shapes = {"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)}
    found: Shapes = {f"layers.{index}.mlp.{name}.weight": shape for name, shape in shapes.items()}
    if layer["model_type"] == "llama" and layer.get("mlp_bias"):
        found |= {f"layers.{index}.mlp.{name}.bias": shape[:1] for name, shape in shapes.items()}
    return found


def norm_shapes(layer: dict[str, Any], index: int) -> Shapes:
    """The two norms of one layer."""
    names = ("input_layernorm", "post_attention_layernorm")
    return {f"layers.{index}.{name}.weight": (layer["hidden_size"],) for name in names}


def is_reduced(config: dict[str, Any]) -> bool:
    """Whether a checkpoint drafts over a part of the verifier's vocabulary."""
    return config.get("draft_vocab_size") not in (None, config["transformer_layer_config"]["vocab_size"])


def required_head_shapes(config: dict[str, Any]) -> Shapes:
    """Head and map of a reduced vocabulary; head and embedding where the verifier's are of another width."""
    layer = config["transformer_layer_config"]
    width, shapes = layer["hidden_size"], Shapes()
    if is_reduced(config):
        shapes |= {"lm_head.weight": (config["draft_vocab_size"], width), "d2t": (config["draft_vocab_size"],)}
    if config.get("target_hidden_size") not in (None, width):
        shapes["embed_tokens.weight"] = (layer["vocab_size"], width)
        shapes.setdefault("lm_head.weight", shapes["embed_tokens.weight"])
    return shapes


def optional_head_shapes(config: dict[str, Any]) -> Shapes:
    """What may be left out: the server takes the verifier's, or does not read it."""
    layer = config["transformer_layer_config"]
    shapes: Shapes = {"embed_tokens.weight": (layer["vocab_size"], layer["hidden_size"])}
    if is_reduced(config):
        shapes["t2d"] = (layer["vocab_size"],)
    else:
        shapes["lm_head.weight"] = shapes["embed_tokens.weight"]
    return {name: shape for name, shape in shapes.items() if name not in required_head_shapes(config)}
