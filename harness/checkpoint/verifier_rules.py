"""Lint rules that compare a well-formed draft with its verifier's folder.

Shape letters: V = verifier vocabulary, H = verifier width, D = draft vocabulary.
"""

from collections.abc import Iterator
from math import isclose
from typing import Any

import torch
from torch import Tensor

from algorithms.layers import rope_of
from harness.checkpoint.findings import Rule, Saying, Subject, fault, note
from harness.checkpoint.stored import Readable, blocks

# Keys of a verifier's config that scale or bound its embeddings or logits.
SCALINGS = ("final_logit_softcapping", "embedding_multiplier", "scale_emb", "logits_scaling", "logit_scale")


def _rope(config: dict[str, Any]) -> dict[str, Any] | None:
    """RoPE settings in the new form; None where they are given per layer type."""
    rope = rope_of(config)
    return None if any(isinstance(value, dict) for value in rope.values()) else rope


def verifier_sizes(subject: Subject) -> Iterator[Saying]:
    """The draft reads the verifier's states and speaks its tokens."""
    verifier, layer = subject.verifier.config, subject.layer
    width = subject.config.get("target_hidden_size") or layer["hidden_size"]
    if width != verifier["hidden_size"]:
        yield fault(
            f"made for a verifier of width {width}, not {verifier['hidden_size']}",
            "name the verifier it was trained on",
        )
    if layer["vocab_size"] != verifier["vocab_size"]:
        found = f"vocab_size {layer['vocab_size']}, the verifier has {verifier['vocab_size']}"
        yield fault(found, "write the verifier's vocab_size, padding included")


def verifier_architecture(subject: Subject) -> Iterator[Saying]:
    """A sign that the checkpoint names another verifier."""
    named = subject.config["speculators_config"]["verifier"].get("architectures")
    if named and named != subject.verifier.architectures:
        yield fault(
            f"written for {named}, the verifier is {subject.verifier.architectures}",
            "name the verifier it was trained on",
        )


def rope_of_verifier(subject: Subject) -> Iterator[Saying]:
    """Drafts turn queries and keys as the verifier does, unless they were trained otherwise."""
    ours, theirs = _rope(subject.layer), _rope(subject.verifier.config)
    if ours is None or theirs is None:
        yield note("the verifier's RoPE differs by layer type", "compare the draft's rope_parameters by hand")
    elif ours != theirs:
        differing = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
        found = ", ".join(f"{key} {ours.get(key)} (verifier {theirs.get(key)})" for key in differing)
        yield fault(found, "write the verifier's rope_parameters; accept this if the draft was trained with its own")
    config = subject.verifier.config
    if (config.get("rope_parameters") or config.get("rope_scaling") or {}).get("mrope_section"):
        found = "the verifier's positions have three axes: vLLM's first model runner loses its place behind images"
        yield note(found, "train on the count of tokens, as its second runner has it, and serve images on that one")


def norm_epsilon(subject: Subject) -> Iterator[Saying]:
    """A small loss everywhere."""
    ours = subject.layer["rms_norm_eps"]
    theirs = subject.verifier.config.get("rms_norm_eps", ours)
    if not isclose(ours, theirs, rel_tol=1e-6):  # conversions round it to float32
        found = f"rms_norm_eps {ours}, the verifier has {theirs}"
        yield fault(found, "write the value used in training; accept this if it was the draft's own")


def max_position(subject: Subject) -> Iterator[Saying]:
    """Not every server raises it; beyond it drafting stops or reads past the rotary table."""
    ours, theirs = subject.layer["max_position_embeddings"], subject.verifier.config["max_position_embeddings"]
    if ours < theirs:
        yield fault(f"max_position_embeddings {ours}, the verifier has {theirs}", f"write {theirs}")


def leaking_window(subject: Subject) -> Iterator[Saying]:
    """A verifier with sliding windows only lends its window to draft layers that name no type."""
    verifier = subject.verifier.config
    slides = verifier.get("sliding_window") and verifier.get("use_sliding_window", True)
    if slides and "full_attention" not in (verifier.get("layer_types") or ()) and not subject.layer.get("layer_types"):
        yield fault(
            f"no layer_types: the verifier's window of {verifier['sliding_window']} is taken", "write layer_types"
        )


def stop_tokens(subject: Subject) -> Iterator[Saying]:
    """A token outside the draft vocabulary is rejected wherever it is due; these are due in every reply."""
    if subject.targets_D is None:
        return
    kept = set(subject.targets_D.tolist())
    lost = [f"{text!r} ({token})" for token, text in subject.verifier.stop_tokens.items() if token not in kept]
    if lost:
        yield fault(
            f"not in the draft vocabulary: {', '.join(lost)}", "force them into the draft vocabulary and train again"
        )


def mask_embedding(subject: Subject) -> Iterator[Saying]:
    """A mask that ends turns stands in every text; one without an embedding says nothing."""
    mask, verifier = subject.config.get("mask_token_id"), subject.verifier
    if mask is None:
        return
    if mask in verifier.stop_tokens:
        yield fault(f"mask_token_id {mask} ends a turn", "train with a token that no text has")
    table = subject.tensors.get("embed_tokens.weight", verifier.embedding_VH)
    if table is None or mask >= table.shape[0]:
        return  # `mask-token` says so
    row_H = table[slice(mask, mask + 1)].float()
    if not bool(row_H.isfinite().all()) or not bool(row_H.any()):
        yield fault(f"the embedding of mask_token_id {mask} is empty", "train with a token whose embedding is not zero")


def own_tokenizer(subject: Subject) -> Iterator[Saying]:
    """The server takes the verifier's tokenizer and chat template, whatever stands beside the draft."""
    ours, theirs = subject.tokenizer, subject.verifier.tokenizer
    if ours is None or theirs is None:
        return
    differing = [name for name in theirs if ours[name] is not None and ours[name] != theirs[name]]
    if differing:
        found = f"{', '.join(differing)} beside the draft are not the verifier's"
        yield fault(found, "name the verifier it was trained on, and train on text in its template")


def verifier_kind(subject: Subject) -> Iterator[Saying]:
    """What a verifier does to its embeddings and logits, and no draft of this format can."""
    found = [f"{key} {subject.verifier.config[key]}" for key in SCALINGS if subject.verifier.config.get(key)]
    if str(subject.verifier.config.get("model_type", "")).startswith("gemma"):
        found.append("norms that add 1 to their weight")
    if found:
        yield note(f"the verifier has {', '.join(found)}", "check that training took its states and logits as they are")
    if quantised := subject.verifier.config.get("quantization_config"):
        kind = quantised.get("quant_method") or "quantised" if isinstance(quantised, dict) else "quantised"
        yield note(f"the verifier's weights are {kind}", "measure with it: its states are a little different")


def _equal_rows(subject: Subject, ours: Readable, theirs_VH: Tensor, rows_D: Tensor | None) -> bool:
    for rows in blocks(ours, subject.share(ours)):
        theirs = theirs_VH[rows] if rows_D is None else theirs_VH[rows_D[rows]]
        if not torch.equal(ours[rows].to(theirs.dtype), theirs):
            return False
    return True


def _compare_rows(subject: Subject, name: str, theirs_VH: Tensor, rows_D: Tensor | None) -> Iterator[Saying]:
    ours = subject.tensors.get(name)
    if ours is None:
        yield note(f"{name} is absent: the verifier's is served", "none needed")
        return
    shape = (len(theirs_VH) if rows_D is None else len(rows_D), theirs_VH.shape[1])
    if tuple(ours.shape) != shape:
        return  # tensor-shapes or verifier-sizes says so
    if _equal_rows(subject, ours, theirs_VH, rows_D):
        yield note(f"{name}: the verifier's rows (frozen)", "none needed")
    elif rows_D is not None and _equal_rows(subject, ours, theirs_VH[: len(rows_D)], None):
        yield fault(f"{name} has the verifier's first {len(rows_D)} rows, not those that d2t keeps", "export it again")
    else:
        yield note(f"{name}: not the verifier's rows (trained)", "check that training was meant to change it")


def output_head(subject: Subject) -> Iterator[Saying]:
    """Whether the head is the verifier's own."""
    head_VH, rows_D = subject.verifier.head_VH, subject.targets_D
    if head_VH is None or (subject.is_reduced and rows_D is None):
        return
    if rows_D is not None and (int(rows_D.min()) < 0 or int(rows_D.max()) >= len(head_VH)):
        return  # vocabulary-tables says so
    yield from _compare_rows(subject, "lm_head.weight", head_VH, rows_D)


def input_embedding(subject: Subject) -> Iterator[Saying]:
    """Whether the embedding is the verifier's own."""
    if subject.verifier.embedding_VH is not None:
        yield from _compare_rows(subject, "embed_tokens.weight", subject.verifier.embedding_VH, None)


VERIFIER_RULES = (
    Rule("verifier-sizes", "the server stops, or drafts are useless", verifier_sizes, needs_verifier=True),
    Rule("verifier-architecture", "another verifier than the trained one", verifier_architecture, needs_verifier=True),
    Rule("rope-of-verifier", "acceptance falls with length", rope_of_verifier, needs_verifier=True),
    Rule("norm-epsilon", "a small loss of acceptance everywhere", norm_epsilon, needs_verifier=True),
    Rule("max-position", "no drafting, or bad drafts, on long replies", max_position, needs_verifier=True),
    Rule("leaking-window", "acceptance falls on long replies", leaking_window, needs_verifier=True),
    Rule("stop-tokens", "a rejection at the end of every turn", stop_tokens, needs_verifier=True),
    Rule("mask-embedding", "masks tell the draft nothing, or something wrong", mask_embedding, needs_verifier=True),
    Rule("own-tokenizer", "other tokens than in training", own_tokenizer, needs_verifier=True),
    Rule("verifier-kind", "drafts of another scale than trained", verifier_kind, needs_verifier=True),
    Rule("output-head", "other tokens are drafted than meant", output_head, needs_verifier=True),
    Rule("input-embedding", "information", input_embedding, needs_verifier=True),
)
