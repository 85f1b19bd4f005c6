"""Lint rules that compare a well-formed draft with its verifier's folder.

Shape letters: V = verifier vocabulary, H = verifier width, D = draft vocabulary.
"""

from collections.abc import Iterator
from math import isclose
from typing import Any

import torch
from torch import Tensor

from algorithms.layers import plain_rope
from harness.checkpoint.findings import Rule, Saying, Subject, fault, note


def _rope(config: dict[str, Any]) -> dict[str, Any] | None:
    """RoPE settings in the new form, defaults and empty values left out; None where they are given per layer type."""
    rope: dict[str, Any] = config.get("rope_parameters") or {}
    if not rope:
        rope = {**(config.get("rope_scaling") or {}), "rope_theta": config.get("rope_theta")}
    if any(isinstance(value, dict) for value in rope.values()):
        return None
    rope = plain_rope({"rope_type": rope.get("type", "default"), **rope})
    return {key: value for key, value in rope.items() if value is not None and key != "type"}


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
    d2t_D = subject.tensors.get("d2t")
    if not subject.is_reduced or d2t_D is None:
        return
    kept = set((d2t_D.long() + torch.arange(d2t_D.numel())).tolist())
    lost = [f"{text!r} ({token})" for token, text in subject.verifier.stop_tokens.items() if token not in kept]
    if lost:
        yield fault(
            f"not in the draft vocabulary: {', '.join(lost)}", "force them into the draft vocabulary and train again"
        )


def _compare_rows(subject: Subject, name: str, theirs_VH: Tensor, rows_D: Tensor | None) -> Iterator[Saying]:
    ours = subject.tensors.get(name)
    if ours is None:
        yield note(f"{name} is absent: the verifier's is served", "none needed")
        return
    theirs = theirs_VH if rows_D is None else theirs_VH[rows_D]
    if ours.shape != theirs.shape:
        return  # tensor-shapes or verifier-sizes says so
    same = torch.equal(ours.to(theirs.dtype), theirs)
    known = "the verifier's rows (frozen)" if same else "not the verifier's rows (trained)"
    yield note(f"{name}: {known}", "none needed" if same else "check that training was meant to change it")


def output_head(subject: Subject) -> Iterator[Saying]:
    """Whether the head is the verifier's own."""
    d2t_D, rows_D = subject.tensors.get("d2t"), None
    if subject.is_reduced:
        if d2t_D is None:
            return
        rows_D = d2t_D.long() + torch.arange(d2t_D.numel())
        if int(rows_D.min()) < 0 or int(rows_D.max()) >= len(subject.verifier.head_VH):
            return  # vocabulary-tables says so
    yield from _compare_rows(subject, "lm_head.weight", subject.verifier.head_VH, rows_D)


def input_embedding(subject: Subject) -> Iterator[Saying]:
    """Whether the embedding is the verifier's own."""
    yield from _compare_rows(subject, "embed_tokens.weight", subject.verifier.embedding_VH, None)


VERIFIER_RULES = (
    Rule("verifier-sizes", "the server stops, or drafts are useless", verifier_sizes, needs_verifier=True),
    Rule("verifier-architecture", "another verifier than the trained one", verifier_architecture, needs_verifier=True),
    Rule("rope-of-verifier", "acceptance falls with length", rope_of_verifier, needs_verifier=True),
    Rule("norm-epsilon", "a small loss of acceptance everywhere", norm_epsilon, needs_verifier=True),
    Rule("max-position", "no drafting, or bad drafts, on long replies", max_position, needs_verifier=True),
    Rule("leaking-window", "acceptance falls on long replies", leaking_window, needs_verifier=True),
    Rule("stop-tokens", "a rejection at the end of every turn", stop_tokens, needs_verifier=True),
    Rule("output-head", "information", output_head, needs_verifier=True),
    Rule("input-embedding", "information", input_embedding, needs_verifier=True),
)
