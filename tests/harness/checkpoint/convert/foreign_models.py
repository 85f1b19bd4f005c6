"""Tiny drafts as other projects save them, and what those projects' networks make of them.

Names, shapes, keys and mathematics follow each project's public definition and are written apart from the product's
code. A `Foreign` drafts by itself in float32; the tests compare it with its converted checkpoint.

Shape letters: S = positions, N = slots, T = rows of a block, A = verifier states, H = width, K = drafts,
D = draft vocabulary, V = verifier vocabulary.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from algorithms.contract import VerifierWeights
from tests import toy

H, INNER, HEADS, GROUPS, HEAD, V = 64, 96, 4, 2, 32, toy.VOCABULARY
QUERY, KEY = HEADS * HEAD, GROUPS * HEAD
EPSILON, MASK = 1e-5, 300
Tensors = dict[str, Tensor]
# (config, tensors, verifier, token_ids_S, states_SAH, K) -> (logits_KD, target ids K)
Drafting = Callable[[dict[str, Any], Tensors, VerifierWeights, Tensor, Tensor, int], tuple[Tensor, Tensor]]


@dataclass
class Foreign:
    """A draft in its project's layout.

    Attributes:
        aux: what it reads of a verifier, in the engine's count.
        answers: arguments of `Answers` that its config is silent on.
    """

    layout: str
    config: dict[str, Any]
    tensors: Tensors
    drafting: Drafting
    aux: tuple[int, ...]
    tokens: int = 3
    answers: dict[str, Any] = field(default_factory=dict)

    def drafts(self, verifier: VerifierWeights, token_ids_S: Tensor, states_SAH: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [K, D] and target ids [K] of one step, in float32."""
        plain = {name: t.float() if t.is_floating_point() else t for name, t in self.tensors.items()}
        weights = VerifierWeights(
            verifier.config, verifier.embedding_VH.float(), verifier.head_VH.float(), verifier.final_norm_H.float()
        )
        return self.drafting(self.config, plain, weights, token_ids_S, states_SAH, self.tokens)

    def write(self, folder: Path, form: str = "safetensors") -> Path:
        """Save it: `safetensors`, `bin`, or either `sharded`."""
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        stem, suffix = ("pytorch_model", "bin") if "bin" in form else ("model", "safetensors")
        save = torch.save if suffix == "bin" else save_file
        if "sharded" not in form:
            save(self.tensors, folder / f"{stem}.{suffix}")
            return folder
        names = list(self.tensors)
        shards = {f"{stem}-{i + 1:05}-of-00002.{suffix}": names[i::2] for i in range(2)}
        for file, held in shards.items():
            save({name: self.tensors[name] for name in held}, folder / file)
        where = {name: file for file, held in shards.items() for name in held}
        (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
        return folder


# ---- mathematics ----


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPSILON).sqrt() * weight


def frequencies(config: dict[str, Any]) -> tuple[Tensor, float]:
    """Radians a position of each pair, and the length that the turned vectors get."""
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta") or 10000.0}
    rope = rope | (config.get("rope_scaling") or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    plain = [rope["rope_theta"] ** (-2 * i / HEAD) for i in range(HEAD // 2)]
    if kind == "linear":
        return torch.tensor(plain) / rope["factor"], 1.0
    if kind == "llama3":
        return torch.tensor([_llama3(f, rope) for f in plain]), 1.0
    if kind == "yarn":

        def pair(turns: float) -> float:
            length = rope["original_max_position_embeddings"]
            return HEAD * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

        low, high = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), HEAD - 1)
        ramp = [min(max((i - low) / (high - low), 0), 1) for i in range(HEAD // 2)]
        turned = [f / rope["factor"] * r + f * (1 - r) for f, r in zip(plain, ramp, strict=True)]
        return torch.tensor(turned), 0.1 * math.log(rope["factor"]) + 1
    assert kind == "default"
    return torch.tensor(plain), 1.0


def _llama3(frequency: float, rope: dict[str, Any]) -> float:
    wave, length = 2 * math.pi / frequency, rope["original_max_position_embeddings"]
    if wave < length / rope["high_freq_factor"]:
        return frequency
    if wave > length / rope["low_freq_factor"]:
        return frequency / rope["factor"]
    share = (length / wave - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
    return (1 - share) * frequency / rope["factor"] + share * frequency


def turned(x: Tensor, positions: Tensor, config: dict[str, Any]) -> Tensor:
    frequency, length = frequencies(config)
    angle = positions.float()[:, None] * frequency
    cos, sin = (torch.cat((part, part), -1)[:, None] * length for part in (angle.cos(), angle.sin()))
    half = torch.cat((-x[..., HEAD // 2 :], x[..., : HEAD // 2]), -1)
    return x * cos + half * sin


def linear(t: Tensors, name: str, x: Tensor) -> Tensor:
    return F.linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))


def attention(
    config: dict[str, Any], t: Tensors, at: str, read: Tensor, places: Tensor, keys: Tensor, key_places: Tensor,
    seen: Tensor,
) -> Tensor:  # fmt: skip
    """Attention of layer `at`; row q of `seen` is true on the keys that row q sees."""
    if f"{at}.self_attn.qkv_proj.weight" in t:
        parts = t[f"{at}.self_attn.qkv_proj.weight"].split([QUERY, KEY, KEY])
        q, k, v = (rows @ part.T for rows, part in zip((read, keys, keys), parts, strict=True))
    else:
        q, k, v = (linear(t, f"{at}.self_attn.{n}_proj", rows) for n, rows in (("q", read), ("k", keys), ("v", keys)))
    q, k, v = q.view(-1, HEADS, HEAD), k.view(-1, GROUPS, HEAD), v.view(-1, GROUPS, HEAD)
    if f"{at}.self_attn.q_norm.weight" in t:
        q, k = rms(q, t[f"{at}.self_attn.q_norm.weight"]), rms(k, t[f"{at}.self_attn.k_norm.weight"])
    q, k = turned(q, places, config), turned(k, key_places, config).repeat_interleave(HEADS // GROUPS, 1)
    v = v.repeat_interleave(HEADS // GROUPS, 1)
    score = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(HEAD)
    weight = score.masked_fill(~seen, float("-inf")).softmax(-1)
    return linear(t, f"{at}.self_attn.o_proj", torch.einsum("hqk,khd->qhd", weight, v).flatten(1))


def mlp(t: Tensors, at: str, x: Tensor) -> Tensor:
    if f"{at}.mlp.gate_up_proj.weight" in t:
        gate, up = (x @ t[f"{at}.mlp.gate_up_proj.weight"].T).chunk(2, -1)
    else:
        gate, up = linear(t, f"{at}.mlp.gate_proj", x), linear(t, f"{at}.mlp.up_proj", x)
    return linear(t, f"{at}.mlp.down_proj", F.silu(gate) * up)


def causal(count: int) -> Tensor:
    return torch.ones(count, count).tril().bool()


def targets_of(config: dict[str, Any], t: Tensors) -> Tensor:
    """Target id of each draft id, as the project's code maps them: by offsets."""
    size = config.get("draft_vocab_size", V)
    return torch.arange(size) + t["d2t"] if size < V else torch.arange(V)


def plain_layer(config: dict[str, Any], t: Tensors, at: str, x: Tensor, first_norm: bool = True) -> Tensor:
    places = torch.arange(len(x))
    read = rms(x, t[f"{at}.input_layernorm.weight"]) if first_norm else x
    x = x + attention(config, t, at, read, places, read, places, causal(len(x)))
    return x + mlp(t, at, rms(x, t[f"{at}.post_attention_layernorm.weight"]))


def joined_layer(config: dict[str, Any], t: Tensors, at: str, embedded: Tensor, state: Tensor) -> Tensor:
    """EAGLE-3's first layer: [embedding; state], and the residual starts from the state before its norm."""
    places = torch.arange(len(state))
    read = torch.cat((rms(embedded, t[f"{at}.input_layernorm.weight"]), rms(state, t[f"{at}.hidden_norm.weight"])), -1)
    state = state + attention(config, t, at, read, places, read, places, causal(len(state)))
    return state + mlp(t, at, rms(state, t[f"{at}.post_attention_layernorm.weight"]))


def fused_states(config: dict[str, Any], t: Tensors, states_SAH: Tensor) -> Tensor:
    if config.get("fc_norm"):
        parts = [rms(states_SAH[:, i], t[f"fc_norm.{i}.weight"]) for i in range(states_SAH.shape[1])]
        states_SAH = torch.stack(parts, 1)
    return states_SAH.flatten(1) @ t["fc.weight"].T


# ---- how each project drafts ----


def recurrent(at: str) -> Drafting:
    """EAGLE-3: its own state stands in for the verifier's."""

    def draft(config, t, verifier, tokens, states, count):
        embedding, head = t.get("embed_tokens.weight", verifier.embedding_VH), t.get("lm_head.weight", verifier.head_VH)
        read, state, logits, drafted = list(tokens[1:]), fused_states(config, t, states), [], []
        for _ in range(count):
            out = joined_layer(config, t, at, embedding[torch.stack(read)], state)[-1:]
            normed = rms(out, t["norm.weight"])
            logits.append((normed @ head.T)[0])
            drafted.append(targets_of(config, t)[logits[-1].argmax()])
            read.append(drafted[-1])
            state = torch.cat((state, normed if config.get("norm_output") else out))
        return torch.stack(logits), torch.stack(drafted)

    return draft


def first_generation(config, t, verifier, tokens, states, count):
    """EAGLE-1 and -2: one state of the verifier, its own feature is fed back, the verifier's head reads it."""
    embedding = t.get("embed_tokens.weight", verifier.embedding_VH)
    read, state, logits, drafted = list(tokens[1:]), states[:, 0], [], []
    for _ in range(count):
        out = linear(t, "fc", torch.cat((embedding[torch.stack(read)], state), -1))
        for index in range(config["num_hidden_layers"]):
            out = plain_layer(config, t, f"layers.{index}", out, first_norm=index > 0)
        logits.append(out[-1] @ verifier.head_VH.T)
        drafted.append(logits[-1].argmax())
        read.append(drafted[-1])
        state = torch.cat((state, out[-1:]))
    return torch.stack(logits), torch.stack(drafted)


def side_by_side(config, t, verifier, tokens, states, count):
    """P-EAGLE: masks behind the context, one pass."""
    embedding = t.get("embed_tokens.weight", verifier.embedding_VH)
    masks = t["mask_hidden"].reshape(1, -1) @ t["fc.weight"].T
    state = torch.cat((fused_states(config, t, states), masks.expand(count - 1, -1)))
    read = torch.cat((tokens[1:], torch.full((count - 1,), MASK)))
    out = joined_layer(config, t, "layers.0", embedding[read], state)
    for index in range(1, config["num_hidden_layers"]):
        out = plain_layer(config, t, f"layers.{index}", out)
    logits = rms(out[-count:], t["norm.weight"]) @ t["lm_head.weight"].T
    return logits, targets_of(config, t)[logits.argmax(-1)]


def convolved(t: Tensors, name: str, x: Tensor, of: Tensor, side: int) -> Tensor:
    """Grouped dynamic convolution over the rows of a block."""
    base = t[f"{name}.base_kernel"][side]
    taps, groups = len(base), H // 8
    dynamic = (of @ t[f"{name}.kernel_projection.weight"].T).view(len(of), 2, taps, groups)[:, side]
    out = torch.zeros_like(x)
    for tap in range(taps):
        moved = F.pad(x, (0, 0, tap, 0))[: len(x)]
        out = out + (base[tap] + dynamic[:, tap].repeat_interleave(8, -1)) * moved
    return out


def block_rows(config, t, embedding, tokens, states, rows: int) -> Tensor:
    """Post-norm states of a block behind the context."""
    section = config.get("dflash_config", {})
    context = rms(states.flatten(1) @ t["fc.weight"].T, t["hidden_norm.weight"])
    own = torch.arange(rows) + len(states)
    places = torch.cat((torch.arange(len(states)), own))
    state = embedding[torch.tensor([int(tokens[-1]), *[MASK] * (rows - 1)])]
    for index in range(config["num_hidden_layers"]):
        at, sliding = f"layers.{index}", config["layer_types"][index] == "sliding_attention"
        gap = own[:, None] - places
        seen = gap >= 0 if config.get("is_causal", sliding) else torch.ones_like(gap).bool()
        seen = seen & (gap.abs() < config["sliding_window"]) if sliding else seen
        normed = rms(state, t[f"{at}.input_layernorm.weight"])
        conv = "conv_kernel_size" in section
        read = convolved(t, f"{at}.attention_conv", normed, normed, 0) if conv else normed
        mixed = attention(config, t, at, read, own, torch.cat((context, read)), places, seen)
        state = state + (convolved(t, f"{at}.attention_conv", mixed, normed, 1) if conv else mixed)
        normed = rms(state, t[f"{at}.post_attention_layernorm.weight"])
        changed = mlp(t, at, convolved(t, f"{at}.mlp_conv", normed, normed, 0) if conv else normed)
        state = state + (convolved(t, f"{at}.mlp_conv", changed, normed, 1) if conv else changed)
    return rms(state, t["norm.weight"])


def own_position(config, t, verifier, tokens, states, count):
    """z-lab: row j drafts the token at its own position; the first row is the known token's."""
    section, kept = config["dflash_config"], targets_of(config, t)
    embedding = verifier.embedding_VH * section.get("input_embedding_scale", 1.0)
    out = block_rows(config, t, embedding, tokens, states, count + 1)[1:]
    logits = out @ verifier.head_VH[kept].T * section.get("output_multiplier", 1.0)
    if "final_logit_softcapping" in section:
        logits = (logits / section["final_logit_softcapping"]).tanh() * section["final_logit_softcapping"]
    if "candidate_selector.hidden_projection.weight" not in t:
        return logits, kept[logits.argmax(-1)]
    walk, previous = [], tokens[-1]
    for row, logit in zip(out, logits, strict=True):
        best = logit.topk(section["selector_top_k"])
        wanted = t["candidate_selector.predecessor_codebook"][previous]
        wanted = wanted * (t["candidate_selector.hidden_projection.weight"] @ row)
        score = best.values + t["candidate_selector.successor_codebook"][best.indices] @ wanted
        previous = best.indices[score.argmax()]
        walk.append(previous)
    return logits, torch.stack(walk)


def next_position(config, t, verifier, tokens, states, count):
    """DeepSpec and SpecForge's DSpark: every row drafts the token behind its own position."""
    t = {name.removeprefix("logit_head."): tensor for name, tensor in t.items()}
    kept = targets_of(config, t)
    embedding = t.get("embed_tokens.weight", verifier.embedding_VH)
    base = block_rows(config, t, embedding, tokens, states, count)
    base = base @ t.get("lm_head.weight", verifier.head_VH[kept]).T
    logits, drafted = [], [tokens[-1]]
    for row in base:
        if "markov_head.markov_w1.weight" in t:
            row = row + t["markov_head.markov_w2.weight"] @ t["markov_head.markov_w1.weight"][drafted[-1]]
        logits.append(row)
        drafted.append(kept[row.argmax()])
    return torch.stack(logits), torch.stack(drafted[1:])


# ---- what each project saves ----


def _sizes(layers: int, model_type: str, architecture: str, **more: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": H,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": HEAD,
        "vocab_size": V,
        "rms_norm_eps": EPSILON,
        "max_position_embeddings": 256,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "transformers_version": "4.53.2",
        "use_cache": True,
        **more,
    }


def _layer(at: str, read: int, head_norm: bool, *norms: str) -> dict[str, tuple[int, ...]]:
    attn = f"{at}.self_attn."
    shapes: dict[str, tuple[int, ...]] = {
        f"{attn}q_proj.weight": (QUERY, read),
        f"{attn}k_proj.weight": (KEY, read),
        f"{attn}v_proj.weight": (KEY, read),
        f"{attn}o_proj.weight": (H, QUERY),
        f"{at}.mlp.gate_proj.weight": (INNER, H),
        f"{at}.mlp.up_proj.weight": (INNER, H),
        f"{at}.mlp.down_proj.weight": (H, INNER),
    }
    shapes |= {f"{attn}{name}_norm.weight": (HEAD,) for name in "qk"} if head_norm else {}
    return shapes | {f"{at}.{norm}.weight": (H,) for norm in norms}


BOTH = ("input_layernorm", "post_attention_layernorm")


def _vocabulary(size: int) -> Tensors:
    kept = toy.draft_vocabulary(size)
    marked = torch.zeros(V, dtype=torch.bool)
    marked[kept] = True
    return {"d2t": kept - torch.arange(size), "t2d": marked}


def safeailab_eagle3(size: int = 96, at: str = "midlayer", **config: Any) -> Foreign:
    shapes = _layer(at, 2 * H, False, *BOTH, "hidden_norm") | {
        "fc.weight": (H, 3 * H), "norm.weight": (H,), "lm_head.weight": (size, H),
    }  # fmt: skip
    saved = _sizes(1, "llama", "LlamaForCausalLM", draft_vocab_size=size, pad_token_id=0, **config)
    tensors = toy.random_tensors(shapes, 3) | _vocabulary(size)
    return Foreign("safeailab-eagle3", saved, tensors, recurrent(at), (1, 3, 5), 3, {"aux_layers": (1, 3, 5)})


def specforge_eagle3(size: int = 96, own_embedding: bool = False, bias: bool = False, **config: Any) -> Foreign:
    section = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 4], "use_aux_hidden_state": True}}
    made = safeailab_eagle3(size, **(section | {"rope_theta": 5000.0, "rope_scaling": None} | config))
    made.config["architectures"] = ["LlamaForCausalLMEagle3"]
    more = {f"fc_norm.{i}.weight": (H,) for i in range(3)} if config.get("fc_norm") else {}
    more |= {"embed_tokens.weight": (V, H)} if own_embedding else {}
    rows = {"q": QUERY, "k": KEY, "v": KEY}
    more |= {f"midlayer.self_attn.{name}_proj.bias": (count,) for name, count in rows.items()} if bias else {}
    made.tensors |= toy.random_tensors(more, 4)
    made.layout, made.aux, made.answers = "specforge-eagle3", (2, 3, 5), {}
    return made


def deepspec_eagle3(verifier: VerifierWeights) -> Foreign:
    shapes = _layer("layers.0", 2 * H, True, *BOTH, "hidden_norm") | {"fc.weight": (H, 5 * H), "norm.weight": (H,)}
    tensors = toy.random_tensors(shapes, 3) | _copied(verifier)
    config = _sizes(
        1, "qwen3", "Qwen3Eagle3Model", target_layer_ids=[0, 1, 2, 3, 4], ttt_length=4, step_loss_decay=0.8,
        num_target_layers=6, rope_parameters={"rope_type": "default", "rope_theta": 20000.0},
        layer_types=["full_attention"], sliding_window=None, use_sliding_window=False, attention_bias=False,
        max_window_layers=36, draft_num_hidden_layers=1,
    )  # fmt: skip
    return Foreign("deepspec-eagle3", config, tensors, recurrent("layers.0"), (1, 2, 3, 4, 5), 4)


def _copied(verifier: VerifierWeights) -> Tensors:
    return {"embed_tokens.weight": verifier.embedding_VH.clone(), "lm_head.weight": verifier.head_VH.clone()}


def specforge_peagle(layers: int = 2) -> Foreign:
    shapes = _layer("layers.0", 2 * H, False, *BOTH, "hidden_norm")
    for index in range(1, layers):
        shapes |= _layer(f"layers.{index}", H, False, *BOTH)
    shapes |= {
        "fc.weight": (H, 3 * H), "mask_hidden": (1, 1, 3 * H), "norm.weight": (H,), "lm_head.weight": (V, H),
        "embed_tokens.weight": (V, H),
    }  # fmt: skip
    tensors = toy.random_tensors(shapes, 3)
    tensors |= {"d2t": torch.zeros(V, dtype=torch.long), "t2d": torch.ones(V, dtype=torch.bool)}
    config = _sizes(layers, "llama", "PEagleDraftModel", draft_vocab_size=V, rope_theta=10000.0, rope_scaling=None)
    answers = {"aux_layers": (2, 3, 5), "mask_token_id": MASK, "speculative_tokens": 3}
    return Foreign("specforge-peagle", config, tensors, side_by_side, (2, 3, 5), 3, answers)


def _block_shapes(layers: int, states: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (H, states * H), "hidden_norm.weight": (H,), "norm.weight": (H,)}
    for index in range(layers):
        shapes |= _layer(f"layers.{index}", H, True, *BOTH)
    return shapes


def _block_config(layers: int, architecture: str, kind: str, **more: Any) -> dict[str, Any]:
    return _sizes(
        layers, "qwen3", architecture, layer_types=[f"{kind}_attention"] * layers, attention_bias=False,
        num_target_layers=6, rope_theta=10000.0, rope_scaling=None, max_window_layers=layers,
    ) | {"sliding_window": None, "use_sliding_window": kind == "sliding"} | more  # fmt: skip


def zlab_dflash(layers: int = 2, kind: str = "full", size: int = V, **config: Any) -> Foreign:
    section = {"mask_token_id": MASK, "target_layer_ids": [0, 2, 4]}
    saved = _block_config(
        layers, "DFlashDraftModel", kind, block_size=4, dflash_config=section,
        auto_map={"AutoModel": "dflash.DFlashDraftModel"}, **config,
    )  # fmt: skip
    tensors = toy.random_tensors(_block_shapes(layers, 3), 3)
    if size < V:
        saved["draft_vocab_size"] = size
        tensors |= _vocabulary(size)
    return Foreign("z-lab-dflash", saved, tensors, own_position, (1, 3, 5), 3)


def zlab_dflash2(layers: int = 1, **section: Any) -> Foreign:
    made = zlab_dflash(layers)
    made.config["architectures"] = ["DFlash2DraftModel"]
    sizes = {"conv_group_size": 8, "conv_kernel_size": 2, "selector_rank": 8, "selector_top_k": 4, "block_size": 4}
    made.config["dflash_config"] |= sizes | section
    del made.config["block_size"]
    shapes = {f"candidate_selector.{name}_codebook": (V, 8) for name in ("predecessor", "successor")}
    shapes["candidate_selector.hidden_projection.weight"] = (8, H)
    for at in (f"layers.{i}.{conv}" for i in range(layers) for conv in ("attention_conv", "mlp_conv")):
        shapes |= {f"{at}.base_kernel": (2, 2, H), f"{at}.kernel_projection.weight": (2 * 2 * (H // 8), H)}
    made.tensors |= {name: 3 * tensor for name, tensor in toy.random_tensors(shapes, 4).items()}
    made.layout = "z-lab-dflash2"
    return made


def deepspec_block(verifier: VerifierWeights, rank: int = 8, confidence: bool = True, layers: int = 2) -> Foreign:
    shapes = _block_shapes(layers, 4)
    if rank:
        shapes |= {f"markov_head.markov_w{i}.weight": (V, rank) for i in (1, 2)}
    if confidence:
        shapes |= {"confidence_head.proj.weight": (1, H + rank), "confidence_head.proj.bias": (1,)}
    tensors = toy.random_tensors(shapes, 3) | _copied(verifier)
    for name in tensors:
        tensors[name] = tensors[name] * (8 if "markov" in name else 1)
    config = _block_config(
        layers, "Qwen3DSparkModel", "full", block_size=4, mask_token_id=MASK, target_layer_ids=[-1, 1, 2, 4],
        num_anchors=512, enable_confidence_head=confidence, markov_rank=rank,
    )  # fmt: skip
    config |= {"markov_head_type": "vanilla"} if rank else {}
    config |= {"confidence_head_with_markov": True} if confidence else {}
    layout = "deepspec-dspark" if rank else "deepspec-dflash"
    return Foreign(layout, config, tensors, next_position, (0, 2, 3, 5), 4)


def specforge_dspark(size: int = 96, causal_rows: bool = True) -> Foreign:
    shapes = _block_shapes(1, 3) | {
        "logit_head.markov_head.markov_w1.weight": (V, 8), "logit_head.markov_head.markov_w2.weight": (size, 8),
    }  # fmt: skip
    section = {
        "mask_token_id": MASK, "target_layer_ids": [0, 2, 4], "projector_type": "dspark", "markov_rank": 8,
        "markov_head_type": "vanilla", "enable_confidence_head": False, "confidence_head_with_markov": False,
        "confidence_head_alpha": 0.0, "attention_mode": "gqa",
    }  # fmt: skip
    config = _block_config(1, "DSparkDraftModel", "full", block_size=4, dflash_config=section, is_causal=causal_rows)
    config["draft_vocab_size"] = size
    tensors = toy.random_tensors(shapes, 3) | (_vocabulary(size) if size < V else {})
    return Foreign("specforge-dspark", config, tensors, next_position, (1, 3, 5), 4)


def safeailab_eagle(verifier: VerifierWeights, layers: int = 1) -> Foreign:
    shapes = _layer("layers.0", H, False, "post_attention_layernorm") | {"fc.weight": (H, 2 * H)}
    for index in range(1, layers):
        shapes |= _layer(f"layers.{index}", H, False, *BOTH)
    tensors = toy.random_tensors(shapes, 3) | {"embed_tokens.weight": verifier.embedding_VH.clone()}
    config = _sizes(layers, "llama", "LlamaForCausalLM", bias=False, pad_token_id=0)
    return Foreign("safeailab-eagle", config, tensors, first_generation, (), 3)


def fused(made: Foreign) -> Foreign:
    """The same draft with its projections fused, as some servers save them."""
    t = made.tensors
    for at in sorted({name.rpartition(".self_attn.")[0] for name in t if ".self_attn.q_proj." in name}):
        t[f"{at}.self_attn.qkv_proj.weight"] = torch.cat([t.pop(f"{at}.self_attn.{n}_proj.weight") for n in "qkv"])
        t[f"{at}.mlp.gate_up_proj.weight"] = torch.cat([t.pop(f"{at}.mlp.{n}_proj.weight") for n in ("gate", "up")])
    return made
