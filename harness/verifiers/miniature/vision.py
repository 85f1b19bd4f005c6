"""The miniature that reads images: Qwen3-VL-MoE, a small vision tower before a language model like the others.

Called by `harness.verifiers.sources`. Trained at once on the text of the others and on pictures of `data.pictures`,
from nothing: the tower learns what the questions ask for.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from harness.data.images import ImageReader, image_urls, text_of
from harness.data.pictures import CELL, image_questions
from harness.progress import log
from harness.sections.verifier import MiniatureVerifier
from harness.verifiers.miniature.build import MEAN_TOKENS, TOKENIZER_CONVERSATIONS, VOCABULARY, save
from harness.verifiers.miniature.copying import start_with_copying
from harness.verifiers.miniature.corpus import Turns, conversations
from harness.verifiers.miniature.documents import Document, documents, packs_of, padded
from harness.verifiers.miniature.families import EXPERTS, EXPERTS_PER_TOKEN, HIDDEN, Family, model_config
from harness.verifiers.miniature.tokenizer import train_tokenizer
from harness.verifiers.miniature.training import HALVES, Half, train

IMAGE, VIDEO, START, END = "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"
# A text turn is a text; a turn with images is a list of parts, as the published template takes it.
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] in ['image', 'image_url'] %}{{ '" + START + IMAGE + END + "' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Neither as wide as the model nor half of it: the published layout of the experts is told apart by its shape.
EXPERT_INTERMEDIATE = 96
QWEN3_VL_MOE = Family(
    "qwen3_vl_moe_text",
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>", START, END, IMAGE, VIDEO),
    TEMPLATE,
    "system\nuser\nassistant",
    end="<|im_end|>",
    config={
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True,
        },
        "num_experts": EXPERTS, "num_experts_per_tok": EXPERTS_PER_TOKEN, "moe_intermediate_size": EXPERT_INTERMEDIATE,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
)  # fmt: skip
PATCH, MERGE, FRAMES = 16, 2, 2
TOWER = {
    "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": HIDDEN,
    "patch_size": PATCH, "spatial_merge_size": MERGE, "temporal_patch_size": FRAMES, "num_position_embeddings": 36,
    "deepstack_visual_indexes": [0],
}  # fmt: skip
LONGEST_SIDE = 4 * CELL
PICTURE_SHARE = 0.3  # of the training tokens
TEXT_SHARES = {"problems": 0.62, "calculations": 0.36, "repetitions": 0.02}  # no time is left for instructions
PICTURE_TOKENS = 60  # of a question about a picture with its answer, on average


def config_of(ids: dict[str, int]) -> Any:
    """The whole configuration at miniature size; `ids` maps special tokens to ids."""
    from transformers import Qwen3VLMoeConfig

    return Qwen3VLMoeConfig(
        text_config=model_config(QWEN3_VL_MOE, VOCABULARY, ids).to_dict(), vision_config=TOWER,
        image_token_id=ids[IMAGE], video_token_id=ids[VIDEO], vision_start_token_id=ids[START],
        vision_end_token_id=ids[END], tie_word_embeddings=False,
    )  # fmt: skip


def processor_of(tokenizer: Any) -> Any:
    """The family's processor for small pictures: sides are multiples of a token's, colours from -1 to 1."""
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    sizes = {
        "patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": FRAMES,
        "size": {"shortest_edge": CELL**2, "longest_edge": LONGEST_SIDE**2},
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    return Qwen3VLProcessor(
        Qwen2VLImageProcessor(**sizes), tokenizer, Qwen3VLVideoProcessor(**sizes), chat_template=TEMPLATE
    )


def build(verifier: MiniatureVerifier, folder: Path) -> None:
    """Train `verifier` and save it to the empty `folder`: config, bf16 safetensors, tokenizer, template, processor."""
    from transformers import AutoModelForImageTextToText

    pictured = int(verifier.training_tokens * PICTURE_SHARE)
    asked = list(islice(_pictured(verifier.seed), pictured // PICTURE_TOKENS))
    turns = conversations(verifier.seed, (verifier.training_tokens - pictured) // MEAN_TOKENS, TEXT_SHARES)
    texts = [text_of(turn["content"]) for row in [*turns[:TOKENIZER_CONVERSATIONS], *asked[:300]] for turn in row]
    tokenizer = train_tokenizer(QWEN3_VL_MOE, texts, VOCABULARY)
    config = config_of({token: tokenizer.convert_tokens_to_ids(token) for token in QWEN3_VL_MOE.special_tokens})
    torch.manual_seed(verifier.seed)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32, attn_implementation="eager")
    log(f"{verifier.id}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters")
    start_with_copying(model, verifier.seed)
    reader = ImageReader(processor_of(tokenizer), config.image_token_id)
    rows = documents(QWEN3_VL_MOE, tokenizer, turns, verifier.seed)
    rows += [document_of(tokenizer, reader, turns) for turns in asked]
    packs = packs_of(rows, verifier.tokens_per_step, verifier.seed)
    train(model, [[_half(reader, pack[i::HALVES]) for i in range(HALVES) if pack[i:]] for pack in packs], verifier)
    save(model, folder)
    publish_experts(folder / "model.safetensors")
    processor_of(tokenizer).save_pretrained(folder)


def _pictured(seed: int) -> Iterator[Turns]:
    for _, messages, answer in image_questions(False, seed):
        yield [*messages, {"role": "assistant", "content": answer}]


def document_of(tokenizer: Any, reader: ImageReader, turns: Turns) -> Document:
    """A question about a picture with its answer, which alone is said."""
    *asked, reply = turns
    urls = image_urls(asked)
    rendered = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=True, return_dict=False)
    prompt = reader.widened(rendered, urls)
    written = tokenizer(f"{reply['content']}{QWEN3_VL_MOE.end}", add_special_tokens=False).input_ids
    return Document([*prompt, *written], [False] * len(prompt) + [True] * len(written), tuple(urls))


def _half(reader: ImageReader, rows: list[Document]) -> Half:
    ids_BS, said_BS = padded(rows)
    return ids_BS, said_BS, partial(reader.inputs, ids_BS[:, :-1], [url for row in rows for url in row.images])


def publish_experts(path: Path) -> None:
    """Turn the experts' matrices to [experts, in, out], as the published weights and the engine have them."""
    tensors = load_file(path)
    tensors |= {name: tensors[name].mT.contiguous() for name in tensors if ".experts." in name}
    save_file(tensors, path, metadata={"format": "pt"})
