"""Each draft layer's own k-norm on the keys it keeps of the verifier's context. Called by `cpu_support.install`.

Drafts that attend to the verifier's states write those states' keys and values into their cache, all layers at once.
vLLM 0.32.0 norms the keys by one fused operation with a weight per layer; on CUDA it takes each layer's row, on CPU it
takes the first row for every layer. The keys of the draft's own rows go another way and are right.
"""

from typing import Any

import torch
from torch import Tensor


def normed_per_layer(all_k_LSKD: Tensor, weight_LD: Tensor, epsilon: float) -> Tensor:
    """RMS norm of each layer's keys with that layer's weight, by the operation that norms the draft's own rows.

    Args:
        all_k_LSKD: keys by layer, position and head, contiguous.
        weight_LD: norm weights.
    """
    from vllm import _custom_ops as ops

    normed_LSKD = torch.empty_like(all_k_LSKD)
    for normed_SKD, k_SKD, weight_D in zip(normed_LSKD, all_k_LSKD, weight_LD, strict=True):
        ops.rms_norm(normed_SKD, k_SKD, weight_D, epsilon)
    return normed_LSKD


def repair() -> None:
    """Give the draft models of this process a context k-norm that minds the layer."""
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

    def normalize(self: Any, all_k: Tensor) -> Tensor:
        return normed_per_layer(all_k, self._k_norm_weights, self._rms_norm_eps)

    DFlashQwen3Model._normalize_context_k = normalize
