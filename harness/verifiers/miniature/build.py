"""Trains a miniature verifier and leaves it in a folder in Hugging Face layout, as a downloaded model would be.

Called by `harness.verifiers.sources`. One pass over text made from the seed; the same seed gives the same text.

Two threads take half of every batch each: at this size the threads inside an operation cost more than they bring. A
gradient is then a sum of two, the same in either order, so that a seed gives the same model every time.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from harness.errors import UserError
from harness.progress import log, meter
from harness.sections.verifier import MiniatureVerifier
from harness.verifiers.miniature.copying import start_with_copying
from harness.verifiers.miniature.corpus import conversations
from harness.verifiers.miniature.documents import batches, documents
from harness.verifiers.miniature.families import FAMILIES, model_config
from harness.verifiers.miniature.tokenizer import train_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

VOCABULARY = 1024
SHARES = {"problems": 0.55, "instructions": 0.1, "calculations": 0.33, "repetitions": 0.02}
TOKENIZER_CONVERSATIONS = 2000
MEAN_TOKENS = 100  # of a conversation, 87 to 114 by family, to know how many make up `training_tokens`
# Token ids, which of them the assistant says, both [B, S]; and what makes the inputs beside all ids but the last.
Half = tuple["Tensor", "Tensor", Callable[[], dict[str, "Tensor"]]]
MUON_RATE, ADAM_RATE, WARMUP_SHARE = 1e-2, 4e-3, 0.05
HALVES = 2


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


def train(model: Any, packs: Sequence[list[Half]], verifier: MiniatureVerifier) -> None:
    """One pass over batches in halves; the rate rises for a share of the steps and then falls in a straight line."""
    optimizers = _optimizers(model)
    model.train()
    tokens = sum(ids_BS.numel() for pack in packs for ids_BS, *_ in pack)
    with _halves() as pool, meter(f"{verifier.id}: training", tokens, "tokens") as bar:
        for step, pack in enumerate(packs):
            share = min((step + 1) / max(1, WARMUP_SHARE * len(packs)), 1.02 - step / len(packs))
            said = sum(int(said_BS.sum()) for _, said_BS, _ in pack)
            loss = sum(pool.map(partial(_learn, model, said), pack))
            if not math.isfinite(loss):
                raise UserError(f"verifier {verifier.id}: the loss is not finite at step {step}. Fix: another seed")
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            list(pool.map(partial(_move, share), *zip(*optimizers, strict=True)))
            bar.advance(sum(ids_BS.numel() for ids_BS, *_ in pack), f"loss {loss:.3f}")


@contextmanager
def _halves() -> Iterator[ThreadPoolExecutor]:
    """Threads for the halves of a batch; inside an operation there is one each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(HALVES, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)


def _learn(model: Any, said: int, half: Half) -> float:
    """Add the gradient of a part of a batch that says `said` tokens in all; returns its share of the loss."""
    ids_BS, said_BS, beside = half
    if not len(ids_BS):
        return 0.0
    loss = _loss(model, ids_BS, said_BS, beside()) / said
    loss.backward()
    return loss.item()


def _move(share: float, optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * share
    optimizer.step()
    optimizer.zero_grad()


def _loss(model: Any, ids_BS: "Tensor", said_BS: "Tensor", beside: dict[str, "Tensor"]) -> "Tensor":
    """Cross-entropy of what the assistant says, summed. Padding is on the right: a causal mask alone keeps it away."""
    with torch.autocast("cpu", torch.bfloat16):
        state_BSH = model.model(input_ids=ids_BS[:, :-1], use_cache=False, **beside).last_hidden_state
        logits_RV = model.lm_head(state_BSH[said_BS[:, 1:]])
    return nn.functional.cross_entropy(logits_RV.float(), ids_BS[:, 1:][said_BS[:, 1:]], reduction="sum")


def _optimizers(model: Any) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the matrices of the layers, half of them each; AdamW for tables, experts, vectors. With full rates."""
    named = dict(model.named_parameters())
    matrices = sorted(name for name, p in named.items() if p.dim() == 2 and "embed" not in name and "head" not in name)
    others = [p for name, p in named.items() if name not in matrices]
    muons = [
        torch.optim.Muon(
            [named[name] for name in matrices[i::HALVES]],
            lr=MUON_RATE,
            weight_decay=0.0,
            adjust_lr_fn="match_rms_adamw",
        )
        for i in range(HALVES)
    ]
    adam = torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    return [*((muon, MUON_RATE) for muon in muons), (adam, ADAM_RATE)]
