"""Trains a miniature verifier and leaves it in a folder in Hugging Face layout, as a downloaded model would be.

Called by `harness.verifiers.sources`. One pass over text made from the seed; the same seed gives the same text.
"""

from pathlib import Path
from typing import Any

import torch

from harness.progress import log
from harness.sections.verifier import MiniatureVerifier
from harness.verifiers.miniature.copying import start_with_copying
from harness.verifiers.miniature.corpus import conversations
from harness.verifiers.miniature.documents import batches, documents
from harness.verifiers.miniature.families import FAMILIES, model_config
from harness.verifiers.miniature.tokenizer import train_tokenizer
from harness.verifiers.miniature.training import HALVES, train

VOCABULARY = 1024
SHARES = {"problems": 0.55, "instructions": 0.1, "calculations": 0.33, "repetitions": 0.02}
TOKENIZER_CONVERSATIONS = 2000
MEAN_TOKENS = 100  # of a conversation, 87 to 114 by family, to know how many make up `training_tokens`


def build(verifier: MiniatureVerifier, folder: Path) -> None:
    """Train `verifier` and save it to the empty `folder`: config, bf16 safetensors, tokenizer, template."""
    from transformers import AutoModelForCausalLM

    family = FAMILIES[verifier.family]
    turns = conversations(verifier.seed, verifier.training_tokens // MEAN_TOKENS, SHARES)
    texts = (turn["content"] for conversation in turns[:TOKENIZER_CONVERSATIONS] for turn in conversation)
    tokenizer = train_tokenizer(family, texts, VOCABULARY)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in family.special_tokens}
    torch.manual_seed(verifier.seed)
    # At this size plain attention takes half the time of the fused kernel's backward pass.
    model = AutoModelForCausalLM.from_config(
        model_config(family, VOCABULARY, ids), dtype=torch.float32, attn_implementation="eager"
    )
    log(f"{verifier.id}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters")
    start_with_copying(model, verifier.seed)
    rows = documents(family, tokenizer, turns, verifier.seed)
    packs = batches(rows, verifier.tokens_per_step, verifier.seed)
    train(model, [[(ids[i::HALVES], said[i::HALVES], dict) for i in range(HALVES)] for ids, said in packs], verifier)
    save(model, folder)
    tokenizer.save_pretrained(folder)


def save(model: Any, folder: Path) -> None:
    """Weights in bf16, config and generation config, which names the tokens that start, end and pad."""
    from transformers import GenerationConfig

    config = model.config.get_text_config()
    tokens = {key: getattr(config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**tokens)
    model.to(torch.bfloat16).save_pretrained(folder)
