"""From settings to a draft, from a draft to the speculators format, and back (contract sections 1 and 2).

Shape letters: H = verifier width, V = verifier vocabulary, D = draft vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from algorithms.contract import VerifierWeights
from algorithms.eagle3.config import Config
from algorithms.eagle3.model import Draft, Shape
from algorithms.vocabulary import from_offsets, target_mask, to_offsets

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def _layer_config(config: Config, verifier: dict[str, Any], aux_layers: list[int]) -> dict[str, Any]:
    """Every key that the engine reads, written out: its defaults differ from the verifier's (contract 1.3)."""
    heads = verifier["num_attention_heads"]
    kind = "sliding_attention" if config.sliding_window else "full_attention"
    return {
        "model_type": config.architecture,
        "hidden_size": verifier["hidden_size"],
        "intermediate_size": config.intermediate_size or verifier["intermediate_size"],
        "num_hidden_layers": config.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": verifier.get("num_key_value_heads", heads),
        "head_dim": verifier.get("head_dim") or verifier["hidden_size"] // heads,
        "vocab_size": verifier["vocab_size"],
        "max_position_embeddings": verifier["max_position_embeddings"],
        "rms_norm_eps": verifier["rms_norm_eps"],
        "rope_parameters": verifier["rope_parameters"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "layer_types": [kind] * config.layers,
        "sliding_window": config.sliding_window,
        "num_aux_hidden_states": len(aux_layers),
        "tie_word_embeddings": False,
    }


def build(config: Config, verifier: VerifierWeights, draft_to_target_D: Tensor, aux_layers: list[int]) -> Draft:
    """An untrained draft: random projections, the verifier's head rows and final norm.

    Args:
        draft_to_target_D: from `algorithms.vocabulary.choose`.
        aux_layers: ascending ids of the verifier states that the data holds.
    """
    shape = Shape(
        layer=_layer_config(config, verifier.config, aux_layers),
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
    content = {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": shape.draft_vocab_size,
        "target_hidden_size": shape.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": shape.aux_layers,
        **{flag: getattr(shape, flag) for flag in FLAGS},
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": shape.speculative_tokens}],
            "default_proposal_method": "greedy",
        },
        "transformer_layer_config": shape.layer,
    }
    tensors = {name: tensor.detach() for name, tensor in draft.state_dict().items()}
    if shape.draft_vocab_size != vocabulary:
        tensors["d2t"] = to_offsets(draft.draft_to_target_D)
        tensors["t2d"] = target_mask(draft.draft_to_target_D, vocabulary)
    return content, tensors


def restore(content: dict[str, Any], tensors: dict[str, Tensor], verifier: VerifierWeights) -> Draft:
    """The draft that `export` or another tool described; keys that may be absent take the server's defaults.

    A full-vocabulary draft may leave its head to the verifier.

    Raises:
        KeyError: the config lacks a key. RuntimeError: a tensor is missing, unknown or of another shape.
        ValueError: some layers have a sliding window and some have none.
    """
    given = content["transformer_layer_config"]
    layer = {"layer_types": ["full_attention"] * given["num_hidden_layers"]} | given
    if len(set(layer["layer_types"])) > 1:
        raise ValueError(f"layer_types = {layer['layer_types']}: layers of two kinds. Fix: use drafts with one kind")
    shape = Shape(
        layer=layer,
        aux_layers=aux_layers_of(content),
        target_hidden_size=content.get("target_hidden_size") or layer["hidden_size"],
        draft_vocab_size=content["draft_vocab_size"] or layer["vocab_size"],
        speculative_tokens=content["speculators_config"]["proposal_methods"][0]["speculative_tokens"],
        **{flag: content.get(flag, False) for flag in FLAGS},
    )
    weights = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d", "embed_tokens.weight")}
    full = torch.arange(layer["vocab_size"])
    draft_to_target_D = from_offsets(tensors["d2t"]) if "d2t" in tensors else full
    weights.setdefault("lm_head.weight", verifier.head_VH)
    draft = Draft(shape, tensors.get("embed_tokens.weight", verifier.embedding_VH), draft_to_target_D)
    draft.load_state_dict(weights)
    return draft
