"""A verifier in transformers, with or without images in its prompts: the reference that the engine is held against.

Used by capture's preflight, parity and the test of sampling. Shape letters: S = tokens, H = width.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harness.data.images import image_reader


def load_model(folder: Path, **how: Any) -> Any:
    """The verifier with its head, in eval mode; `how` (dtype, device_map) goes to transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    kind, _ = _kind(folder)
    return kind.from_pretrained(folder, **how).eval()


def load_reference(folder: Path, dtype: torch.dtype | str) -> Any:
    """`load_model` spread over all GPUs that this process sees, on the CPU where there are none."""
    return load_model(folder, dtype=dtype, device_map="auto" if torch.cuda.is_available() else None)


def parameters(folder: Path) -> int:
    """How many the verifier has; no weight is read."""
    kind, config = _kind(folder)
    with torch.device("meta"):
        return int(kind.from_config(config).num_parameters())


def _kind(folder: Path) -> tuple[Any, Any]:
    """(class in transformers, configuration). Models that also read images are a class of their own there."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = AutoConfig.from_pretrained(folder)
    reads_text_alone = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return (AutoModelForCausalLM if reads_text_alone else AutoModelForImageTextToText), config


def routes(model: Any) -> bool:
    """Whether it is a mixture of experts: there rounding may choose another expert, which changes a token visibly."""
    config = model.config.get_text_config()
    return any(getattr(config, key, None) for key in ("num_experts", "num_local_experts", "n_routed_experts"))


class Inputs:
    """What the model of a verifier folder is called with.

    Args:
        folder: of the verifier.
        model: loaded from there.
    """

    def __init__(self, folder: Path, model: Any) -> None:
        self.folder, self.model = folder, model

    def __call__(self, token_ids_1S: Tensor, images: Sequence[str] = ()) -> dict[str, Tensor]:
        """Named inputs for a prompt whose images are data URIs, on the model's device."""
        # Such a model keeps by how much the last prompt's images shifted positions, also for a prompt without any.
        if hasattr(self.model.base_model, "rope_deltas"):
            self.model.base_model.rope_deltas = None
        reader = image_reader(self.folder) if images else None
        named = {"input_ids": token_ids_1S} | (reader.inputs(token_ids_1S, images) if reader else {})
        return {name: tensor.to(self.model.device) for name, tensor in named.items()}


class LayerStates:
    """The residual stream that each layer of a model reads, and its final norm, in the latest forward pass.

    transformers' own `hidden_states` lack what a model adds between two layers (features of images).
    """

    def __init__(self, model: Any) -> None:
        decoder = model.get_decoder()
        self._kept: dict[int, Tensor] = {}
        for number, module in enumerate([*decoder.layers, decoder.norm]):
            module.register_forward_pre_hook(self._keeper(number), with_kwargs=True)

    def _keeper(self, number: int) -> Any:
        def keep(_: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
            self._kept[number] = args[0] if args else kwargs["hidden_states"]

        return keep

    def __getitem__(self, layer: int) -> Tensor:
        """[S, H] after `layer` layers, of the first row of the batch; the last one before the final norm."""
        return self._kept[layer][0]
