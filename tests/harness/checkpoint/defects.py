"""The planted defects: (algorithm, rule that must name it, what is done to a sound draft). Used by `test_lint`."""

from typing import Any

import torch
from torch import Tensor

from tests import toy
from tests.harness.checkpoint.drafts import (
    MASK,
    Defect,
    Parts,
    both,
    change,
    drop,
    named,
    put,
    tensor,
    tokens,
)

WIDTH = 64


def rope(**values: Any) -> Defect:
    return put("layer", rope_parameters={"rope_type": "default", "rope_theta": 10000.0} | values)


def absolute_table(parts: Parts) -> None:
    parts["tensors"]["d2t"] = parts["tensors"]["t2d"].nonzero().flatten()


def without_stop_token(parts: Parts) -> None:
    kept = parts["tensors"]["t2d"].nonzero().flatten()
    kept[-1] = toy.TURN_END_ID + 1  # <|im_end|> is the last of them; an unused row takes its place
    parts["tensors"]["d2t"] = kept - torch.arange(kept.numel())
    parts["tensors"]["t2d"] = torch.zeros(toy.VOCABULARY, dtype=torch.bool).index_fill(0, kept, True)


def tables_of_full_vocabulary(parts: Parts) -> None:
    parts["config"]["draft_vocab_size"] = toy.VOCABULARY
    parts["tensors"]["lm_head.weight"] = torch.zeros(toy.VOCABULARY, WIDTH)


def one_bad_value(given: Tensor) -> Tensor:
    return given.index_fill(0, torch.tensor([0]), float("nan"))


def swap_first_two(offsets: Tensor) -> Tensor:
    target = offsets + torch.arange(offsets.numel())
    target[[0, 1]] = target[[1, 0]]
    return target - torch.arange(offsets.numel())


def first_rows_of_the_head(parts: Parts) -> None:
    parts["tensors"]["lm_head.weight"] = parts["head_VH"][: len(parts["tensors"]["d2t"])]


def other_words(parts: Parts) -> None:
    parts["tokenizer"] = parts["tokenizer"] | {"chat template": "{{ messages }}"}


def written_by_the_reference_trainer(parts: Parts) -> None:
    """All layers attend fully, and the flag is left at that trainer's default."""
    parts["config"] |= {"speculators_version": "0.9.0", "sliding_window_non_causal": False}


def renamed(old: str, new: str) -> Defect:
    def defect(parts: Parts) -> None:
        for name in [name for name in parts["tensors"] if name.startswith(old)]:
            parts["tensors"][new + name.removeprefix(old)] = parts["tensors"].pop(name)

    return defect


def without_key(*names: str) -> Defect:
    return drop("config", *names)


# Of every draft.
COMMON: list[tuple[str, Defect]] = [
    ("top-level-model-type", put("config", model_type="speculator_model")),
    ("remote-code", put("config", auto_map={"AutoConfig": "draft.Config"})),
    ("remote-code", put("layer", auto_map={"AutoModel": "draft.Model"})),
    ("pickled-files", lambda p: p["files"].append("mask_embedding.pt")),
    ("pickled-files", lambda p: p["files"].append("pytorch_model.bin")),
    ("weight-files", lambda p: p["files"].append("optimizer.safetensors")),
    ("verifier-path", named("/home/someone/model")),
    ("verifier-path", named("C:\\models\\toy")),
    ("verifier-path", named("../model")),
    ("structure", drop("config", "speculators_config")),
    ("structure", put("section", default_proposal_method="tree")),
    ("structure", put("section", proposal_methods=[])),
    ("structure", tokens(0)),
    ("structure", lambda p: p["section"]["verifier"].pop("name_or_path")),
    ("structure", drop("config", "transformer_layer_config")),
    ("structure", put("config", transformer_layer_config="llama")),
    ("structure", drop("layer", "rms_norm_eps")),
    ("structure", drop("layer", "head_dim")),
    ("structure", put("layer", hidden_act="gelu")),
    ("algorithm", put("config", speculators_model_type="mtp")),
    ("algorithm", put("section", algorithm="another")),
    ("algorithm-keys", without_key("draft_vocab_size")),
    ("algorithm-keys", put("config", quantization_config={"quant_method": "fp8"})),
    ("proposal", tokens(500)),
    (
        "proposal",
        lambda p: p["section"].update(
            proposal_methods=[{"proposal_type": "tree", "speculative_tokens": 3}, *p["section"]["proposal_methods"]]
        ),
    ),
    ("attention-heads", put("layer", num_attention_heads=3, num_key_value_heads=2)),
    ("attention-heads", put("layer", head_dim=31)),
    ("layer-keys", put("layer", quantization_config={"quant_method": "fp8"})),
    ("layer-keys", put("layer", is_neox_style=False)),
    ("layer-keys", put("layer", logit_scale=0.5)),
    ("rope-written", drop("layer", "rope_parameters")),
    ("rope-written", put("layer", rope_theta=10000.0)),
    ("rope-written", rope(mrope_section=[4, 6, 6])),
    ("rope-written", rope(rope_type="spiral")),
    ("rope-written", rope(rope_type="llama3", factor=8.0)),
    ("rope-written", put("layer", rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e4}})),
    ("sliding-window", put("layer", layer_types=["full_attention"] * 2)),
    ("sliding-window", put("layer", layer_types=["sliding_attention"], sliding_window=None)),
    ("sliding-window", both(drop("layer", "layer_types"), put("layer", sliding_window=8))),
    ("missing-tensors", drop("tensors", "fc.weight")),
    ("missing-tensors", drop("tensors", "norm.weight")),
    ("missing-tensors", renamed("layers.0.", "midlayer.")),
    ("unexpected-tensors", tensor("verifier_norm.weight", torch.ones(WIDTH))),
    ("unexpected-tensors", tensor("layers.0.self_attn.o_proj.bias", torch.ones(WIDTH))),
    ("unexpected-tensors", tensor("layers.0.self_attn.qkv_proj.weight", torch.ones(128, WIDTH))),
    ("tensor-shapes", change("layers.0.self_attn.q_proj.weight", lambda t: t[:, :32])),
    ("tensor-shapes", tensor("embed_tokens.weight", torch.ones(96, WIDTH))),
    ("finite-values", change("norm.weight", one_bad_value)),
    ("stored-dtype", change("norm.weight", lambda t: t.to(torch.float8_e4m3fn))),
    ("stored-dtype", change("fc.weight", lambda t: t.to(torch.int8))),
    ("verifier-sizes", put("verifier", hidden_size=128)),
    ("verifier-sizes", put("verifier", vocab_size=512)),
    ("verifier-architecture", lambda p: p["section"]["verifier"].update(architectures=["Qwen3ForCausalLM"])),
    ("rope-of-verifier", rope(rope_theta=1e6)),
    ("rope-of-verifier", rope(rope_type="linear", factor=4.0)),
    ("rope-of-verifier", put("verifier", rope_parameters=None, rope_theta=1e6)),
    ("norm-epsilon", put("layer", rms_norm_eps=1e-6)),
    ("max-position", put("layer", max_position_embeddings=128)),
    ("leaking-window", both(put("verifier", sliding_window=64), drop("layer", "layer_types"))),
    ("own-tokenizer", other_words),
]
REDUCED: list[tuple[str, Defect]] = [
    ("missing-tensors", drop("tensors", "d2t")),
    ("missing-tensors", drop("tensors", "lm_head.weight")),
    ("unexpected-tensors", tables_of_full_vocabulary),
    ("vocabulary-tables", absolute_table),
    ("vocabulary-tables", both(absolute_table, drop("tensors", "t2d"))),
    ("vocabulary-tables", change("d2t", swap_first_two)),
    ("vocabulary-tables", change("d2t", lambda t: t - 1000)),
    ("vocabulary-tables", change("d2t", lambda t: t.int())),
    ("vocabulary-tables", change("t2d", lambda t: t.roll(1))),
    ("vocabulary-tables", change("t2d", lambda t: t.long())),
    ("vocabulary-tables", put("config", draft_vocab_size=toy.VOCABULARY + 1)),
    ("output-head", first_rows_of_the_head),
    ("stop-tokens", without_stop_token),
]
MASKED: list[tuple[str, Defect]] = [
    ("algorithm-keys", without_key("mask_token_id")),
    ("algorithm-keys", put("config", mask_token_id=None)),
    ("mask-token", put("config", mask_token_id=toy.VOCABULARY)),
    ("mask-embedding", put("config", mask_token_id=toy.TURN_END_ID)),
    ("mask-embedding", tensor("embed_tokens.weight", torch.zeros(toy.VOCABULARY, WIDTH))),
]
NETWORK: list[tuple[str, Defect]] = [
    ("algorithm-keys", without_key("norm_before_residual")),
    ("algorithm-keys", without_key("eagle_aux_hidden_state_layer_ids")),
    ("draft-architecture", put("layer", model_type="gpt2")),
    ("draft-architecture", put("layer", is_causal=False)),
    ("aux-count", put("layer", num_aux_hidden_states=4)),
    (
        "aux-count",
        both(put("config", eagle_aux_hidden_state_layer_ids=[1, 3]), drop("layer", "num_aux_hidden_states")),
    ),
    ("attention-bias", put("layer", model_type="qwen3", attention_bias=True)),
    ("feature-norms", put("config", fc_norm=True, norm_before_fc=True)),
    ("layer-ids", put("config", eagle_aux_hidden_state_layer_ids=[5, 1, 3])),
    ("layer-ids", put("config", eagle_aux_hidden_state_layer_ids=[1, 3, 3])),
    ("layer-ids", put("config", eagle_aux_hidden_state_layer_ids=[1, 3, 7])),
    ("layer-ids", put("config", eagle_aux_hidden_state_layer_ids=[-1, 3, 5])),
    ("missing-tensors", put("layer", model_type="qwen3")),
    ("tensor-shapes", put("config", eagle_aux_hidden_state_layer_ids=[1, 3])),
]
BLOCK: list[tuple[str, Defect]] = [
    ("algorithm-keys", without_key("aux_hidden_state_layer_ids")),
    ("draft-architecture", put("layer", model_type="llama")),
    ("draft-architecture", put("layer", is_causal=True)),
    ("draft-architecture", put("layer", attention_bias=True)),
    ("layer-kinds", put("layer", layer_types=["full_attention", "sliding_attention"], sliding_window=8)),
    ("block-size", tokens(5)),
    ("block-size", tokens(2)),
    ("layer-ids", put("config", aux_hidden_state_layer_ids=[0, 1, 9])),
    ("unexpected-tensors", tensor("mask_hidden", torch.ones(1, 1, 3 * WIDTH))),
    ("missing-tensors", drop("tensors", "layers.0.self_attn.k_norm.weight")),
]
CAUSALITY: list[tuple[str, Defect]] = [
    ("algorithm-keys", without_key("sliding_window_non_causal")),
    ("algorithm-keys", put("config", sample_from_anchor=True)),
    ("block-causality", written_by_the_reference_trainer),
]
DEFECTS: dict[str, list[tuple[str, Defect]]] = {
    "eagle3": [
        *COMMON,
        *REDUCED,
        *NETWORK,
        ("algorithm-keys", put("config", norm_output="true")),
        ("algorithm-keys", put("config", norm_befor_fc=True)),
        ("missing-tensors", drop("tensors", "input_norm.weight")),
        ("unexpected-tensors", put("config", norm_before_fc=False)),
    ],
    "peagle": [
        *REDUCED,
        *MASKED,
        *NETWORK,
        ("feature-norms", put("config", fc_norm=True)),
        ("missing-tensors", drop("tensors", "mask_hidden")),
        ("algorithm-keys", put("config", sliding_window_non_causal=True)),
    ],
    "dflash": [*REDUCED, *MASKED, *BLOCK, *CAUSALITY],
    "dflash2": [
        *COMMON,
        *MASKED,
        *BLOCK,
        *CAUSALITY,
        ("algorithm-keys", without_key("conv_kernel_size")),
        ("algorithm-keys", without_key("selector_top_k")),
        ("conv-groups", put("config", conv_group_size=24)),
        ("conv-taps", put("config", conv_kernel_size=5)),
        ("candidate-count", put("config", selector_top_k=toy.VOCABULARY + 1)),
        ("full-vocabulary", put("config", draft_vocab_size=96)),
        ("missing-tensors", drop("tensors", "candidate_selector.successor_codebook")),
    ],
    "dspark": [
        *REDUCED,
        *MASKED,
        *BLOCK,
        ("algorithm-keys", without_key("sample_from_anchor")),
        ("algorithm-keys", without_key("markov_rank")),
        ("algorithm-keys", put("config", markov_rank=0)),
        ("algorithm-keys", put("config", markov_head_type="gated")),
        ("block-size", put("config", sample_from_anchor=False)),
        (
            "block-causality",  # bidirectional in training; the server's sliding layers are causal
            both(
                put("layer", layer_types=["sliding_attention"], sliding_window=8),
                put("config", sliding_window_non_causal=True),
            ),
        ),
        ("block-causality", put("layer", dflash_config={"mask_token_id": MASK})),
        ("missing-tensors", drop("tensors", "markov_head.markov_w1.weight")),
        ("tensor-shapes", change("markov_head.markov_w1.weight", lambda t: t[:96])),  # by draft ids, not target ids
        ("unexpected-tensors", put("config", enable_confidence_head=False)),
    ],
}
