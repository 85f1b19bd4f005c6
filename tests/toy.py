"""Tiny verifiers, a byte tokenizer and drafts for them, made from a seed without a network, for tests of every part.

A toy verifier is a folder in Hugging Face layout that transformers and vLLM load like any other. Its weights are random
but large enough that greedy replies wander; nothing it says means anything.

Shape letters: V = verifier vocabulary, H = width, D = draft vocabulary.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

import algorithms
from algorithms.contract import VerifierWeights
from harness.checkpoint import write_checkpoint

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCABULARY = 320  # 256 bytes, three special tokens, rows of padding
END_OF_TEXT_ID, TURN_START_ID, TURN_END_ID = 256, 257, 258
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WEIGHT_STD = 0.12


def verifier_config(kind: str = "llama", **changes: Any) -> dict[str, Any]:
    """config.json of a toy verifier; `kind` is llama or qwen3, `changes` replace single keys."""
    return {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[kind]],
        "model_type": kind,
        "dtype": "float32",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": TURN_START_ID,
        "eos_token_id": TURN_END_ID,
    } | changes


def _layer_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (query, width),
        "self_attn.k_proj": (key, width),
        "self_attn.v_proj": (key, width),
        "self_attn.o_proj": (width, query),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    per_head = {"self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}
    return shapes | (per_head if config["model_type"] == "qwen3" else {})


def random_tensors(
    shapes: dict[str, tuple[int, ...]], seed: int, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Vectors (norm weights) around 1, everything else around 0, in the order of `shapes`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        return (1 + 0.3 * noise if len(shape) == 1 else WEIGHT_STD * noise).to(dtype)

    return {name: draw(shape) for name, shape in shapes.items()}


def tokenizer() -> Tokenizer:
    """One token a byte, and the three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([END_OF_TEXT, TURN_START, TURN_END])
    return made


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json with the chat template, and nothing else."""
    tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": TURN_START,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": 512,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_verifier(
    folder: Path, kind: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> Path:
    """A verifier folder: config, tokenizer, generation config, random weights. `changes` replace config keys."""
    folder.mkdir(parents=True, exist_ok=True)
    config = verifier_config(kind, dtype=str(dtype).removeprefix("torch."), **changes)
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], config["hidden_size"])}
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in _layer_shapes(config).items()}
    shapes["model.norm.weight"] = (config["hidden_size"],)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    save_file(random_tensors(shapes, seed, dtype), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [TURN_END_ID], "do_sample": False}))
    write_tokenizer(folder)
    return folder


def draft_vocabulary(size: int, seed: int = 0) -> Tensor:
    """Ascending target ids, int64 [D], the special tokens among them; all ids for the full vocabulary."""
    if size == VOCABULARY:
        return torch.arange(VOCABULARY)
    special = torch.tensor([END_OF_TEXT_ID, TURN_START_ID, TURN_END_ID])
    others = torch.randperm(END_OF_TEXT_ID, generator=torch.Generator().manual_seed(seed))[: size - len(special)]
    return torch.cat((special, others)).sort().values


def random_draft(
    verifier: VerifierWeights,
    draft_vocab_size: int = 96,
    aux_layers: tuple[int, ...] = (1, 3, 5),
    seed: int = 1,
    algorithm: str = "eagle3",
    **settings: Any,
) -> nn.Module:
    """An untrained draft with every trainable weight drawn at random, norms too, so that no part is the identity."""
    kind = algorithms.load(algorithm)
    config = kind.Config(**{"speculative_tokens": 3} | settings)
    draft = kind.build(config, verifier, draft_vocabulary(draft_vocab_size), list(aux_layers))
    free = {name: parameter for name, parameter in draft.named_parameters() if parameter.requires_grad}
    drawn = random_tensors({name: tuple(parameter.shape) for name, parameter in free.items()}, seed)
    draft.load_state_dict(drawn, strict=False)
    return draft


def write_draft(folder: Path, draft: nn.Module, verifier_name: str, algorithm: str = "eagle3") -> Path:
    """The draft's checkpoint, as the training step writes it."""
    write_checkpoint(folder, *algorithms.load(algorithm).export(draft), verifier_name, ["LlamaForCausalLM"])
    return folder
