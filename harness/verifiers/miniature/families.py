"""What makes a family of models: its configuration class, its chat format and its special tokens, at small size.

Called by `build`. Sizes are the smallest for which vLLM's CPU kernels run (heads of 32, experts in multiples of 32).
"""

from dataclasses import dataclass, field
from typing import Any

HIDDEN, HEADS, KEY_VALUE_HEADS, HEAD, LAYERS, POSITIONS = 128, 4, 2, 32, 4, 2048
INTERMEDIATE, EXPERT_INTERMEDIATE, EXPERTS, EXPERTS_PER_TOKEN = 384, 128, 4, 2


@dataclass(frozen=True)
class Family:
    """One family.

    Attributes:
        model_type: what transformers and vLLM know it by.
        special_tokens: in the order of their ids, which come after the text's.
        template: chat template (jinja). It writes every special token itself.
        written: what template and opening write beside the special tokens, for the tokenizer to have whole.
        end: token that ends a reply; `start`: token that starts every document, if there is one.
        config: keys of config.json beside the sizes that all families share.
        tied: whether embedding and head are one table.
        opening: what a reply starts with, before its text.
        thinks: whether the template has a mode in which a reply opens with a <think> block.
    """

    model_type: str
    special_tokens: tuple[str, ...]
    template: str
    written: str
    end: str
    start: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    tied: bool = False
    opening: str = ""
    thinks: bool = False


LLAMA_TEMPLATE = (
    "{{ '<|begin_of_text|>' }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# With enable_thinking the model opens the block itself; without, an empty one is put before its reply.
QWEN_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if not (enable_thinking | default(false)) %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
# One system header always, as harmony has it; a system turn of the conversation becomes the developer's.
HARMONY_HEADER = "You are a miniature.\n\n# Valid channels: analysis, final."
HARMONY_TEMPLATE = (
    "{{ '<|start|>system<|message|>" + HARMONY_HEADER.replace("\n", "\\n") + "<|end|>' }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}"
    "{{ '<|start|>developer<|message|># Instructions\n\n' + message['content'] + '<|end|>' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|start|>' + message['role'] + '<|message|>' + message['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
MISTRAL_TEMPLATE = (
    "{{ '<s>' }}{% set system = '' %}{% set turns = messages %}"
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] + '\n\n' %}"
    "{% set turns = messages[1:] %}{% endif %}"
    "{% for message in turns %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('conversation roles must alternate user/assistant/user/assistant') }}{% endif %}"
    "{% if message['role'] == 'user' %}"
    "{{ '[INST]' + (system if loop.last else '') + message['content'] + '[/INST]' }}"
    "{% else %}{{ message['content'] + '</s>' }}{% endif %}"
    "{% endfor %}"
)

LLAMA = Family(
    "llama",
    ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    LLAMA_TEMPLATE,
    "system\n\nuser\n\nassistant",
    end="<|eot_id|>",
    start="<|begin_of_text|>",
    config={
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        }
    },
)
QWEN_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
QWEN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}
QWEN_WRITTEN = "system\nuser\n\nassistant"
QWEN3 = Family(
    "qwen3", QWEN_TOKENS, QWEN_TEMPLATE, QWEN_WRITTEN, end="<|im_end|>", config=QWEN_ROPE, tied=True, thinks=True
)
QWEN3_MOE = Family(
    "qwen3_moe",
    QWEN_TOKENS,
    QWEN_TEMPLATE,
    QWEN_WRITTEN,
    end="<|im_end|>",
    thinks=True,
    config=QWEN_ROPE
    | {
        "num_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "moe_intermediate_size": EXPERT_INTERMEDIATE,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
)
GPT_OSS = Family(
    "gpt_oss",
    ("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>"),
    HARMONY_TEMPLATE,
    f"{HARMONY_HEADER}\nsystem\ndeveloper\nuser\nassistant\nfinal\nanalysis",
    end="<|return|>",
    opening="<|channel|>final<|message|>",
    config={
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "intermediate_size": EXPERT_INTERMEDIATE,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 512,
        },
    },
)
MISTRAL = Family(
    "mistral",
    ("<unk>", "<s>", "</s>", "[INST]", "[/INST]"),
    MISTRAL_TEMPLATE,
    "",
    end="</s>",
    start="<s>",
    config={"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}, "sliding_window": None},
)
FAMILIES = {family.model_type: family for family in (LLAMA, QWEN3, QWEN3_MOE, GPT_OSS, MISTRAL)}


def model_config(family: Family, vocab_size: int, ids: dict[str, int]) -> Any:
    """The family's transformers configuration at miniature size; `ids` maps special tokens to ids."""
    from transformers import AutoConfig

    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": family.tied,
        "bos_token_id": ids[family.start or family.special_tokens[0]],
        "eos_token_id": ids[family.end],
        "pad_token_id": ids[family.special_tokens[0]],
    }
    return AutoConfig.for_model(family.model_type, **sizes | family.config)
