"""A tiny verifier that reads images, random but able to wander, and conversations about pictures for it."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from harness.data.images import image_urls
from harness.data.pictures import image_questions
from harness.verifiers.miniature.families import Family
from harness.verifiers.miniature.tokenizer import train_tokenizer
from harness.verifiers.miniature.vision import QWEN3_VL_MOE, VOCABULARY, config_of, processor_of, publish_experts

WEIGHT_STD = 0.1


def write_picture_verifier(folder: Path, seed: int = 0) -> Path:
    """Config, float32 weights, tokenizer, template and processor in Hugging Face layout."""
    family: Family = QWEN3_VL_MOE
    tokenizer = train_tokenizer(family, ["How many red circles are in the picture? I see 12."], VOCABULARY)
    config = config_of({token: tokenizer.convert_tokens_to_ids(token) for token in family.special_tokens})
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(WEIGHT_STD * noise if parameter.dim() > 1 else 1 + 0.3 * noise)
    model.save_pretrained(folder)
    publish_experts(folder / "model.safetensors")
    processor_of(tokenizer).save_pretrained(folder)
    return folder


def pictured(count: int, seed: int = 0) -> list[tuple[list[dict[str, Any]], list[str]]]:
    """(messages, data URIs of their images) of some questions about pictures."""
    asked = image_questions(False, seed)
    return [(messages, image_urls(messages)) for (_, messages, _), _ in zip(asked, range(count), strict=False)]
