"""Lint rules over config.json alone.

`STRUCTURE_RULES` read the raw file and come first; `CONFIG_RULES` rely on a file that has passed them.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from pydantic import BaseModel, ValidationError

import algorithms
from harness.checkpoint.findings import Rule, Saying, Subject, fault, note
from harness.checkpoint.schema import DraftConfig, algorithm_keys
from harness.faults import explain

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".npy", ".npz")
CODE_SUFFIXES = (".py", ".so", ".pyc")
SPECULATIVE_TOKENS_MAX = 128  # the server's sampler holds no more
ROPE_NEEDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}


def _validated(model: type[BaseModel], content: dict[str, Any]) -> Iterator[Saying]:
    try:
        model.model_validate(content)
    except ValidationError as error:
        for line in explain(error, "config.json", model).splitlines():
            found, _, fix = line.partition(". Fix: ")
            yield fault(found, fix)


def top_level_model_type(subject: Subject) -> Iterator[Saying]:
    """Transformers looks the name up, does not know it and stops."""
    if "model_type" in subject.config:
        yield fault(f"top-level model_type {subject.config['model_type']!r}", "remove it")


def remote_code(subject: Subject) -> Iterator[Saying]:
    """`auto_map` names Python code of the repository; only keys that begin with Auto are ever looked up."""
    layer = subject.config.get("transformer_layer_config")
    for where, section in (("config.json", subject.config), ("transformer_layer_config", layer)):
        if not isinstance(section, dict) or "auto_map" not in section:
            continue
        names = section["auto_map"]
        inert = isinstance(names, dict) and not any(str(key).startswith("Auto") for key in names)
        say = note if inert else fault
        yield say(f"auto_map {names!r} in {where}", "remove auto_map: the server needs no code of the checkpoint's")
    code = [name for name in subject.files if name.endswith(CODE_SUFFIXES)]
    if code:
        yield note(f"code beside the weights: {', '.join(code)}", "leave it out: the server does not need it")


def pickled_files(subject: Subject) -> Iterator[Saying]:
    """Pickles can run code when they are read."""
    for name in subject.files:
        if name.endswith(PICKLE_SUFFIXES):
            yield fault(f"file {name}", "store tensors as safetensors and delete it")


def structure(subject: Subject) -> Iterator[Saying]:
    """Keys that the server reads for every algorithm."""
    yield from _validated(DraftConfig, subject.config)


def algorithm_of_checkpoint(subject: Subject) -> Iterator[Saying]:
    """The algorithm must be one that this project knows, and be named alike in both places."""
    name = subject.config.get("speculators_model_type")
    section = subject.config.get("speculators_config")
    if subject.format is None:
        yield fault(f"speculators_model_type {name!r} is not known here", "use a checkpoint of a known algorithm")
    if isinstance(section, dict) and section.get("algorithm", name) != name:
        found = f"speculators_model_type {name!r} but speculators_config.algorithm {section['algorithm']!r}"
        yield fault(found, "write the same name in both")


def algorithm_settings(subject: Subject) -> Iterator[Saying]:
    """The algorithm's own keys: known, typed, and written where the server's default differs."""
    if subject.format is not None:
        yield from _validated(subject.format.Keys, algorithm_keys(subject.config))


def verifier_path(subject: Subject) -> Iterator[Saying]:
    """The path of the machine that trained the draft means nothing elsewhere."""
    section = subject.config.get("speculators_config")
    verifier = section.get("verifier") if isinstance(section, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    if not isinstance(name, str):
        return  # `structure` says so
    absolute = PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive or name.startswith(("~", "file:"))
    if absolute or ".." in PurePosixPath(name).parts:
        yield fault(
            f"verifier.name_or_path {name!r} exists on one machine only", "write the hub id or a relative folder"
        )


def proposal(subject: Subject) -> Iterator[Saying]:
    """The server reads the first method's number of tokens, accepts greedily, and has room for so many."""
    section = subject.config["speculators_config"]
    methods, chosen = section["proposal_methods"], section["default_proposal_method"]
    tokens, room = methods[0]["speculative_tokens"], subject.layer["max_position_embeddings"]
    if methods[0]["proposal_type"] != chosen:
        found = f"default_proposal_method {chosen!r}, but the server reads {methods[0]['proposal_type']!r}"
        yield fault(found, "put the default method first")
    if tokens > min(SPECULATIVE_TOKENS_MAX, room - 1):
        most = min(SPECULATIVE_TOKENS_MAX, room - 1)
        yield fault(f"{tokens} speculative tokens", f"write at most {most}: the server has no room for more")
    lenient = [key for key in ("accept_tolerance", "verifier_accept_k") if methods[0].get(key) not in (None, 0, 0.0, 1)]
    if lenient:
        yield note(f"{', '.join(lenient)}: the server does not read them", "leave them out")


def attention_heads(subject: Subject) -> Iterator[Saying]:
    """Groups of query heads share a key head; rotation pairs the sizes of a head."""
    layer = subject.layer
    queries, keys = layer["num_attention_heads"], layer["num_key_value_heads"]
    if queries % keys:
        yield fault(f"{queries} query heads over {keys} key heads", "write the numbers that were trained")
    if layer["head_dim"] % 2:
        yield fault(f"head_dim {layer['head_dim']} is odd", "write the size that was trained")


def layer_keys(subject: Subject) -> Iterator[Saying]:
    """Keys of transformer_layer_config by which the server computes something else than trainers do."""
    layer = subject.layer
    if layer.get("quantization_config") is not None:
        yield fault(
            "quantization_config: the server takes the draft for quantised", "remove it, and store plain floats"
        )
    if layer.get("is_neox_style", True) is not True:
        yield fault("is_neox_style: pairs of neighbours are rotated", "remove it: trainers rotate halves")
    if layer.get("logit_scale", 1.0) != 1.0:
        yield fault(f"logit_scale {layer['logit_scale']} multiplies what the head says", "remove it")


def rope_written(subject: Subject) -> Iterator[Saying]:
    """Left out, each architecture of the server takes a base of its own."""
    layer = subject.layer
    rope = layer.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_theta" not in rope or "rope_type" not in rope:
        yield fault(f"rope_parameters {rope!r}", "write rope_parameters with rope_type and rope_theta")
        return
    for key in ("rope_theta", "rope_scaling"):
        if layer.get(key) is not None:
            yield fault(f"{key} beside rope_parameters: two sources of one truth", f"remove {key}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        found = f"partial_rotary_factor {rope['partial_rotary_factor']}: the server turns the first part of each head"
        yield note(found, "check that training did: some trainers turn whole heads")
    if rope.get("mrope_section") is not None:
        yield fault("mrope_section in the draft's RoPE", "remove it: drafts count tokens, behind images too")
    needs = ROPE_NEEDS.get(str(rope["rope_type"]))
    if needs is None:
        yield fault(f"rope_type {rope['rope_type']!r}", f"use one of {', '.join(ROPE_NEEDS)}")
    elif missing := [key for key in needs if rope.get(key) is None]:
        yield fault(f"rope_type {rope['rope_type']!r} without {', '.join(missing)}", "write the verifier's values")


def layer_ids(subject: Subject) -> Iterator[Saying]:
    """The server sorts the ids and drops repeats; the draft then reads other states than it was trained on."""
    ids = subject.algorithm.aux_layers(subject.config)
    if any(a >= b for a, b in pairwise(ids)):
        yield fault(f"layer ids {ids} do not ascend", "train and write ascending, distinct ids: the server sorts them")
    count = subject.facts.config["num_hidden_layers"] if subject.facts else None
    if any(i < 0 or (count is not None and i > count) for i in ids):
        yield fault(f"layer ids {ids} outside 0..{count or 'n'}", "write residual-stream ids: 0 is the embedding")


def sliding_window(subject: Subject) -> Iterator[Saying]:
    """Windows are per draft layer; what is left out is full attention, or the verifier's window."""
    layer = subject.layer
    types = layer.get("layer_types")
    if types is not None and len(types) != layer["num_hidden_layers"]:
        yield fault(
            f"{len(types)} layer_types for {layer['num_hidden_layers']} layers", "write one for each draft layer"
        )
    if not types and layer.get("sliding_window"):
        yield fault(
            f"sliding_window {layer['sliding_window']} without layer_types: full attention is served",
            "write layer_types",
        )
    if "sliding_attention" not in (types or ()):
        return
    window = layer.get("sliding_window")
    if not window:
        yield fault("sliding_attention layers without sliding_window", "write the width used in training")
    elif window < layer["max_position_embeddings"]:
        yield note(f"the draft sees the last {window} tokens only", "measure acceptance on replies longer than that")


def guessed_method(path: str) -> str | None:
    """The method that the server reads from a path when it is told none; None without such a word (contract 1.1)."""
    words = ["eagle-", *dict.fromkeys(map(algorithms.engine_method, algorithms.NAMES))]
    return next((word.rstrip("-") for word in words if word in path.lower()), None)


def served_as(subject: Subject) -> Iterator[Saying]:
    """What the server should report, and how to name the draft when it is passed by hand."""
    tokens = subject.config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
    method = subject.algorithm.engine_method
    # With a mask token it drafts in parallel; named by hand, some methods would draft one by one without a word.
    how = f"method {method!r}{', parallel_drafting true' if 'mask_token_id' in subject.config else ''}"
    fix = f"with --speculative-config pass {how} and num_speculative_tokens: it guesses from the path else"
    guessed = guessed_method(subject.path)
    wrong = f", by hand the path alone would give {guessed}" if guessed not in (None, method) else ""
    yield note(f"method {method}, {tokens} tokens a step{wrong}", fix)


STRUCTURE_RULES = (
    Rule("top-level-model-type", "the server does not load the draft", top_level_model_type),
    Rule("remote-code", "code of the checkpoint's may run", remote_code),
    Rule("pickled-files", "code of the checkpoint's may run", pickled_files),
    Rule("verifier-path", "the server loads another verifier, or none", verifier_path),
    Rule("structure", "the server does not load the draft, or takes defaults", structure),
    Rule("algorithm", "the server does not load the draft", algorithm_of_checkpoint),
    Rule("algorithm-keys", "the server takes defaults: drafts are useless", algorithm_settings),
)
CONFIG_RULES = (
    Rule("proposal", "another number of tokens is drafted, or the server stops", proposal),
    Rule("attention-heads", "the server stops", attention_heads),
    Rule("layer-keys", "other drafts than in training", layer_keys),
    Rule("rope-written", "acceptance falls with length", rope_written),
    Rule("layer-ids", "drafts are useless", layer_ids),
    Rule("sliding-window", "acceptance falls on long replies", sliding_window),
    Rule("served-as", "another method drafts", served_as),
)
