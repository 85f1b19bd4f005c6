"""What the checkpoints of all drafts share (contract sections 1 and 2): used by the `export.py` of each.

Shape letters: V = verifier vocabulary, D = draft vocabulary.
"""

from typing import Any, TypeVar

import torch
from torch import Tensor

from algorithms.contract import VerifierWeights
from algorithms.layers import rope_of
from algorithms.settings import DraftConfig
from algorithms.vocabulary import from_offsets, target_mask, to_offsets

# Tensors of a checkpoint that are not parameters of the draft.
TABLES = ("d2t", "t2d", "embed_tokens.weight")

# Any of the networks: all have a final norm, an output head and a draft vocabulary.
Draft = TypeVar("Draft", bound=Any)


def layer_config(config: DraftConfig, verifier: dict[str, Any], model_type: str, **more: Any) -> dict[str, Any]:
    """`transformer_layer_config` with every key that the engine reads: its defaults differ from the verifier's (1.3).

    Args:
        verifier: the verifier's text config.
        model_type: llama or qwen3.
        more: keys of one algorithm.
    """
    heads = verifier["num_attention_heads"]
    kind = "sliding_attention" if config.sliding_window else "full_attention"
    return {
        "model_type": model_type,
        "hidden_size": verifier["hidden_size"],
        "intermediate_size": config.intermediate_size or verifier["intermediate_size"],
        "num_hidden_layers": config.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": verifier.get("num_key_value_heads", heads),
        "head_dim": verifier.get("head_dim") or verifier["hidden_size"] // heads,
        "vocab_size": verifier["vocab_size"],
        "max_position_embeddings": verifier["max_position_embeddings"],
        "rms_norm_eps": verifier["rms_norm_eps"],
        "rope_parameters": rope_of(verifier),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "layer_types": [kind] * config.layers,
        "sliding_window": config.sliding_window,
        "use_sliding_window": config.sliding_window is not None,  # without it Transformers drops a Qwen3 window
        "tie_word_embeddings": False,
        **more,
    }


@torch.no_grad()
def take_over(draft: Draft, verifier: VerifierWeights, train_head: bool) -> Draft:
    """Start a draft's final norm and output head from the verifier's; the head is trained if asked for.

    Returns the draft.
    """
    draft.norm.weight.copy_(verifier.final_norm_H)
    draft.lm_head.weight.copy_(verifier.head_VH[draft.draft_to_target_D])
    draft.lm_head.weight.requires_grad_(train_head)
    return draft


def one_window(layer: dict[str, Any]) -> int | None:
    """Sliding window of all layers in tokens; None for full attention.

    Raises:
        ValueError: some layers have a window and some have none.
    """
    kinds = set(layer.get("layer_types") or ["full_attention"])
    if len(kinds) > 1:
        raise ValueError(f"layer_types = {layer['layer_types']}: layers of two kinds. Fix: use drafts with one kind")
    return layer["sliding_window"] if kinds == {"sliding_attention"} else None


def header(name: str, speculative_tokens: int) -> dict[str, Any]:
    """The keys by which the server knows the algorithm and K (1.2); the writer adds the verifier."""
    return {
        "speculators_model_type": name,
        "speculators_config": {
            "algorithm": name,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": speculative_tokens}],
            "default_proposal_method": "greedy",
        },
    }


def speculative_tokens(content: dict[str, Any]) -> int:
    """K of a checkpoint: the server reads the first proposal method."""
    return content["speculators_config"]["proposal_methods"][0]["speculative_tokens"]


def vocabulary_tensors(draft_to_target_D: Tensor, vocabulary: int) -> dict[str, Tensor]:
    """`d2t` and `t2d` of a reduced vocabulary; nothing for the full one, where the server refuses them (2.1)."""
    if draft_to_target_D.numel() == vocabulary:
        return {}
    return {"d2t": to_offsets(draft_to_target_D), "t2d": target_mask(draft_to_target_D, vocabulary)}


def tensors_of(draft: Any) -> dict[str, Tensor]:
    """The draft's weights by checkpoint name, and the tables of a reduced vocabulary."""
    tensors = {name: tensor.detach() for name, tensor in draft.state_dict().items()}
    return tensors | vocabulary_tensors(draft.draft_to_target_D, draft.shape.layer["vocab_size"])


def draft_to_target(tensors: dict[str, Tensor], vocabulary: int) -> Tensor:
    """Target id of each draft id of a checkpoint, int64 [D]."""
    return from_offsets(tensors["d2t"]) if "d2t" in tensors else torch.arange(vocabulary)


def parameters_of(tensors: dict[str, Tensor], head_VH: Tensor) -> dict[str, Tensor]:
    """The draft's own weights; a full-vocabulary draft may leave its head to the verifier (2.4)."""
    weights = {name: tensor for name, tensor in tensors.items() if name not in TABLES}
    weights.setdefault("lm_head.weight", head_VH)
    return weights
