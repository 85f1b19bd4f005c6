"""The moves that translations of other projects' drafts have in common. Used by the `foreign.py` of each algorithm.

Shape letters: V = verifier vocabulary, D = draft vocabulary, H = width.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from algorithms.foreign import Case, ForeignError
from algorithms.layers import rotary_frequencies
from algorithms.vocabulary import from_offsets, target_mask, to_offsets

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def rope_of(case: Case, head_dim: int, default_base: float | None = None) -> dict[str, Any]:
    """`rope_parameters` from either form of a config, every key written.

    Args:
        default_base: what the project's code takes where its config is silent; None where it always writes it.
    """
    fields = case.fields
    rope: dict[str, Any] = {k: v for k, v in fields.get("rope_parameters", {}).items() if v is not None}
    scaling: dict[str, Any] = {k: v for k, v in fields.get("rope_scaling", {}).items() if v is not None}
    base = fields.get("rope_theta")
    if any(isinstance(value, dict) for value in rope.values()):
        raise ForeignError("config.json: rope_parameters differ by layer type. Fix: convert a draft with one rope")
    if rope and ((base not in (None, rope.get("rope_theta"))) or scaling):
        raise ForeignError("config.json: rope_parameters beside rope_theta or rope_scaling. Fix: keep what was trained")
    rope = rope or scaling
    kind = rope.pop("type", None)
    rope.setdefault("rope_type", kind or "default")
    if rope.get("rope_theta", base) is None:
        if default_base is None:
            raise ForeignError("config.json: rope_theta: missing. Fix: write the trained value there")
        case.notes.append(f"rope_theta is not in the source: its project's code takes {default_base}")
    rope["rope_theta"] = float(rope.get("rope_theta", default_base if base is None else base))
    if rope["rope_type"] == "yarn" and "original_max_position_embeddings" not in rope:
        rope["original_max_position_embeddings"] = fields.need("max_position_embeddings")
    try:
        rotary_frequencies(rope, head_dim)
    except (ValueError, KeyError) as error:
        raise ForeignError(f"config.json: rope: {error}") from None
    return rope


def layer_of(case: Case, model_type: str, default_base: float | None = None, **more: Any) -> dict[str, Any]:
    """`transformer_layer_config` of a draft with full attention, every key of the source's own value.

    Args:
        model_type: llama or qwen3.
        default_base: see `rope_of`.
        more: keys that differ, or that one algorithm adds.
    """
    fields, verifier = case.fields, case.verifier.config
    heads, width, count = (fields.need(k) for k in ("num_attention_heads", "hidden_size", "num_hidden_layers"))
    head_dim = fields.get("head_dim", width // heads)
    positions = fields.need("max_position_embeddings")
    fields.only("hidden_act", "silu", "the server computes silu alone")
    fields.only("mlp_bias", False, "drafts here have no biases in their MLP")
    fields.only("partial_rotary_factor", 1.0, "the server and its trainers turn different parts of a head")
    fields.only("pretraining_tp", 1, "its products are summed in parts")
    fields.only("quantization_config", None, "a quantised draft has no plain weights")
    if fields.need("vocab_size") != verifier["vocab_size"]:
        said = f"vocab_size = {fields.need('vocab_size')}: the verifier has {verifier['vocab_size']}"
        raise ForeignError(f"config.json: {said}. Fix: name the verifier that it was trained on")
    trained = fields.get("num_target_layers", case.verifier_layers)
    if trained != case.verifier_layers:
        said = f"num_target_layers = {trained}: the verifier has {case.verifier_layers}"
        raise ForeignError(f"config.json: {said}. Fix: name the verifier that it was trained on")
    if positions < verifier["max_position_embeddings"]:
        case.notes.append(f"max_position_embeddings was {positions}: raised to the verifier's")
    return {
        "model_type": model_type,
        "hidden_size": width,
        "intermediate_size": fields.need("intermediate_size"),
        "num_hidden_layers": count,
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get("num_key_value_heads", heads),
        "head_dim": head_dim,
        "vocab_size": verifier["vocab_size"],
        "max_position_embeddings": max(positions, verifier["max_position_embeddings"]),
        "rms_norm_eps": fields.need("rms_norm_eps"),
        "rope_parameters": rope_of(case, head_dim, default_base),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "layer_types": ["full_attention"] * count,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        **more,
    }


def no_window(case: Case) -> None:
    """For projects whose code knows full attention alone: a window in the config is refused."""
    fields = case.fields
    sliding = "sliding_attention" in fields.get("layer_types", ())
    fields.get("sliding_window")
    if sliding or fields.get("use_sliding_window", False):
        raise ForeignError("config.json: layer_types: this layout has full attention alone. Fix: convert another draft")


def aux_layers_of(case: Case, found: list[int] | None, key: str, usual: list[int]) -> list[int]:
    """Ids of the verifier states that a draft reads, from its config or from the user; never guessed.

    Args:
        found: ids in the engine's count that the source says in `key`.
        usual: what its project takes by default, told as a hint.
    """
    hint = "with the ids it was trained on, 0 for the embedding, i for the state after i layers. Its project's usual "
    hint += f"default for {case.verifier_layers} layers is {','.join(map(str, usual))}: only a hint"
    given = case.answers.aux_layers
    if found is not None and given is not None and list(given) != found:
        said = f"--aux-layers {list(given)}: config.json says {key}, which is {found}"
        raise ForeignError(f"{said}. Fix: leave --aux-layers out")
    if found is None and given is None:
        raise ForeignError(f"config.json: {key}: missing. Fix: pass --aux-layers {hint}")
    ids = list(given) if found is None and given is not None else list(found or ())
    if any(a >= b for a, b in pairwise(ids)):
        raise ForeignError(f"layer ids {ids}: the server sorts them. Fix: convert a draft trained on ascending ids")
    if not ids or ids[0] < 0 or ids[-1] > case.verifier_layers:
        raise ForeignError(f"layer ids {ids}: outside 0..{case.verifier_layers}. Fix: name its own verifier")
    if ids[-1] == case.verifier_layers:
        said = f"layer id {ids[-1]}: trainers read the last layer's state behind the final norm, the server before it"
        raise ForeignError(f"{said}. Fix: convert a draft that does not read it")
    return ids


def spread_layers(verifier_layers: int, count: int) -> list[int]:
    """What z-lab's, SpecForge's and DeepSpec's block drafts usually read, in the engine's count: spread evenly."""
    if count == 1:
        return [verifier_layers // 2 + 1]
    return [round(1 + i * (verifier_layers - 4) / (count - 1)) + 1 for i in range(count)]


def after_layers(ids: list[int] | None) -> list[int] | None:
    """Engine ids of the states behind the layers `ids`, counted from 0; -1 is the embedding."""
    return None if ids is None else [i + 1 for i in ids]


def unfuse(case: Case, layer: dict[str, Any]) -> None:
    """Undo fused projections: rows of query, key, value one after another, and of gate and up."""
    query, key = (layer[f"num_{kind}_heads"] * layer["head_dim"] for kind in ("attention", "key_value"))
    parts = {
        "qkv_proj": (("q_proj", "k_proj", "v_proj"), [query, key, key]),
        "gate_up_proj": (("gate_proj", "up_proj"), [layer["intermediate_size"]] * 2),
    }
    for name in case.ledger.names():
        for fused, (new, sizes) in parts.items():
            if f".{fused}." in name:
                case.ledger.split(name, [name.replace(fused, part) for part in new], sizes)


def rotary_buffers(case: Case, layer: dict[str, Any]) -> None:
    """Leave out saved rotary frequencies, once they are those of the config."""
    wanted = rotary_frequencies(layer["rope_parameters"], layer["head_dim"])
    for name in [name for name in case.ledger.names() if name.endswith("rotary_emb.inv_freq")]:
        tensor = case.ledger.look(name)
        assert tensor is not None
        if tensor.shape != wanted.shape or not torch.allclose(tensor.float(), wanted, rtol=1e-2):
            raise ForeignError(f"tensor {name}: not the rope of config.json. Fix: write the trained rope there")
        case.ledger.leave_out(name, "follows from rope_parameters: compared")


def attention_biases(case: Case, layer: dict[str, Any]) -> None:
    """Leave out biases that are zero; carry those of attention over where the server and the draft here have them."""
    ledger = case.ledger
    case.fields.get("attention_bias")
    case.fields.get("bias")
    names = [n for n in ledger.names() if n.endswith(".bias") and not n.startswith("confidence_head.")]
    kept = {name for name in names if bool(ledger.look(name).any())}
    lost = [name for name in kept if ".self_attn." not in name or layer["model_type"] != "llama"]
    if lost:
        said = f"tensors {', '.join(sorted(lost))}: the server would drop them in silence"
        raise ForeignError(f"{said}. Fix: convert a draft without this bias")
    for name in names:
        if not kept or ".self_attn." not in name:
            ledger.leave_out(name, "all zeros: it adds nothing")
    if not kept:
        return
    layer["attention_bias"] = True
    query, key = (layer[f"num_{kind}_heads"] * layer["head_dim"] for kind in ("attention", "key_value"))
    rows = {"q_proj": query, "k_proj": key, "v_proj": key, "o_proj": layer["hidden_size"]}
    for name in (f"layers.{i}.self_attn.{part}" for i in range(layer["num_hidden_layers"]) for part in rows):
        if f"{name}.bias" not in ledger:
            zeros = torch.zeros(rows[name.rpartition(".")[2]])
            ledger.make(f"{name}.bias", zeros, "zeros: the server has a bias in all four projections or in none")


def draft_vocabulary(case: Case) -> int:
    """Tokens that the draft can propose: its config says so, or its head has that many rows."""
    head, vocabulary = case.ledger.look(HEAD), case.verifier.config["vocab_size"]
    rows = vocabulary if head is None else head.shape[0]
    size = case.fields.get("draft_vocab_size", rows)
    if size != rows and head is not None:
        raise ForeignError(f"config.json: draft_vocab_size = {size}: the head has {rows} rows. Fix: use its files")
    return size


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two tensors hold the same numbers, as far as the narrower of their dtypes can say."""
    if ours.shape != theirs.shape:
        return False
    return torch.equal(ours, theirs.to(ours.dtype)) or torch.equal(ours.to(theirs.dtype), theirs)


def embedding_and_head(case: Case, size: int, head_of_verifier: bool = False) -> None:
    """Keep what is the draft's own; leave out what the verifier has, once it was compared. After `vocabulary_tables`.

    Args:
        size: tokens that the draft can propose.
        head_of_verifier: the project reads the verifier's rows of a reduced vocabulary where it has saved no head.
    """
    ledger, verifier = case.ledger, case.verifier
    tied = case.fields.get("tie_word_embeddings", False)
    if tied and size == verifier.config["vocab_size"]:
        _untie(case)
    if EMBEDDING in ledger and same(ledger.look(EMBEDDING), verifier.embedding_VH):
        ledger.leave_out(EMBEDDING, "the verifier's own: compared")
    if size < verifier.config["vocab_size"]:
        if HEAD not in ledger and not head_of_verifier:
            raise ForeignError(f"tensor {HEAD}: missing, but a part of the vocabulary is drafted. Fix: use every file")
        if HEAD not in ledger:
            rows = verifier.head_VH[from_offsets(ledger.tensors["d2t"])]
            ledger.make(HEAD, rows, "the verifier's rows of the drafted tokens: the project's code reads these")
    elif HEAD in ledger and same(ledger.look(HEAD), verifier.head_VH):
        ledger.leave_out(HEAD, "the verifier's own: compared")
    elif HEAD not in ledger and HEAD not in ledger.tensors:
        case.notes.append("the source has no head: it uses the verifier's")


def _untie(case: Case) -> None:
    """Write a head that is the embedding once more, unless the verifier's head is just that."""
    ledger, verifier = case.ledger, case.verifier
    own, head = ledger.look(EMBEDDING), ledger.look(HEAD)
    table = verifier.embedding_VH if own is None else own
    if head is not None and not same(head, table):
        raise ForeignError("config.json: tie_word_embeddings = True: but the head is another tensor. Fix: correct it")
    if head is None and not same(table, verifier.head_VH):
        ledger.make(HEAD, table.clone(), "the embedding once more: tie_word_embeddings")


def vocabulary_tables(case: Case, size: int) -> None:
    """`d2t` as offsets and `t2d` of a reduced vocabulary, told apart by their values; none for the full one."""
    ledger, vocabulary = case.ledger, case.verifier.config["vocab_size"]
    d2t, t2d = ledger.look("d2t"), ledger.look("t2d")
    if size == vocabulary:
        _full_vocabulary(case, d2t, t2d)
        return
    if d2t is None:
        raise ForeignError(f"tensor d2t: missing, but {size} of {vocabulary} tokens are drafted. Fix: use every file")
    target_D = _targets(case, d2t.long(), None if t2d is None else t2d.bool(), vocabulary)
    ledger.move("d2t", tensor=to_offsets(target_D))
    if t2d is None:
        ledger.make("t2d", target_mask(target_D, vocabulary), "marks the targets of d2t")
    else:
        ledger.move("t2d", tensor=t2d.bool())


def _full_vocabulary(case: Case, d2t: Tensor | None, t2d: Tensor | None) -> None:
    if d2t is not None:
        if bool(d2t.any()) and not torch.equal(d2t.long(), torch.arange(len(d2t))):
            raise ForeignError("tensor d2t: permutes the vocabulary. Fix: convert a draft that keeps its order")
        case.ledger.leave_out("d2t", "the identity: every token is drafted")
    if t2d is not None:
        if not bool(t2d.all()):
            raise ForeignError("tensor t2d: leaves tokens out, but all are drafted. Fix: use one draft's files")
        case.ledger.leave_out("t2d", "true everywhere: every token is drafted")


def _targets(case: Case, d2t_D: Tensor, t2d_V: Tensor | None, vocabulary: int) -> Tensor:
    """Target id of each draft id, by whichever reading of the table the values allow."""
    readings = {"offsets": d2t_D + torch.arange(len(d2t_D)), "targets": d2t_D}

    def possible(target_D: Tensor) -> bool:
        ascending = bool((target_D[1:] > target_D[:-1]).all())
        inside = int(target_D.min()) >= 0 and int(target_D.max()) < vocabulary
        marked = t2d_V is None or torch.equal(target_D, t2d_V.nonzero().flatten())
        return ascending and inside and marked

    fit = [name for name, target_D in readings.items() if possible(target_D)]
    if not fit:
        said = "tensor d2t: neither ascending target ids nor their offsets" + ("" if t2d_V is None else " of t2d")
        raise ForeignError(f"{said}. Fix: use one draft's files")
    asked = case.answers.d2t
    if asked is not None and asked not in fit:
        raise ForeignError(f"--d2t {asked}: the table holds {fit[0]}. Fix: leave --d2t out")
    if asked is None and len(fit) > 1 and not torch.equal(*readings.values()):
        raise ForeignError("tensor d2t: target ids or offsets, both could be. Fix: pass --d2t offsets or targets")
    case.notes.append(f"d2t holds {asked or fit[0]} in the source")
    return readings[asked or fit[0]]


def plain_floats(case: Case) -> None:
    """Refuse weights of a quantised draft."""
    for name in case.ledger.names():
        tensor = case.ledger.look(name)
        if tensor is not None and tensor.is_floating_point() and tensor.dtype not in FLOATS:
            raise ForeignError(f"tensor {name} is {tensor.dtype}: quantised. Fix: convert the draft it was made from")
