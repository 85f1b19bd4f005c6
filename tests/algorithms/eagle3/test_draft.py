"""The vectorised draft against a plain dense loop, training against drafting, and the gradient of the loss."""

import itertools

import pytest
import torch
from torch.nn import functional as F

import algorithms
from algorithms.contract import Batch, VerifierWeights
from algorithms.eagle3.config import Config
from algorithms.eagle3.drafting import draft_steps
from algorithms.eagle3.training import loss, rows_of, unroll
from algorithms.features import Teacher
from algorithms.vocabulary import choose

WIDTH, VOCABULARY, AUX = 32, 61, [1, 2, 4]
EAGLE3 = algorithms.load("eagle3")


def verifier_weights(seed: int = 0) -> VerifierWeights:
    generator = torch.Generator().manual_seed(seed)
    config = {
        "hidden_size": WIDTH, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "vocab_size": VOCABULARY, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
        "num_hidden_layers": 5, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    }  # fmt: skip
    random = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return VerifierWeights(config, random(VOCABULARY, WIDTH), random(VOCABULARY, WIDTH), 1 + 0.3 * random(WIDTH))


def make_draft(draft_vocab_size: int | None = 40, seed: int = 1, **flags):
    config = Config(speculative_tokens=3, draft_vocab_size=draft_vocab_size, **flags)
    verifier = verifier_weights()
    kept = choose(
        torch.randint(0, 9, (VOCABULARY,), generator=torch.Generator().manual_seed(5)), draft_vocab_size or VOCABULARY
    )
    draft = EAGLE3.build(config, verifier, kept, AUX)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if parameter.dim() == 1 else 0.3 * noise)
    return draft


def sequence(length: int, seed: int = 3):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (length,), generator=generator)
    return tokens, torch.randn(length, len(AUX), WIDTH, generator=generator)


def assert_near(got, want):
    """Equal up to float32 rounding: relative error of the whole vector, as one small entry alone says nothing."""
    assert ((got - want).norm() / want.norm()).item() < 1e-5


def rms(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def turned(x, positions, theta=100.0):
    size = x.shape[-1]
    angle = positions.float()[:, None] / theta ** (torch.arange(0, size, 2).float() / size)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., : size // 2], x[..., size // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def dense_forward(draft, embedding, state, positions, mask):
    """One whole pass over all slots with plain tensors: contract 4.1, written apart from the product's code.

    Row q of `mask` is true on the slots that slot q sees.
    """
    weights, shape = dict(draft.named_parameters()), draft.shape
    count = embedding.shape[0]
    for depth in range(shape.layer["num_hidden_layers"]):
        get = lambda name, depth=depth: weights[f"layers.{depth}.{name}.weight"]  # noqa: E731
        if depth == 0:
            normed = rms(state, get("hidden_norm"))
            residual = normed if shape.norm_before_residual else state
            read = torch.cat([rms(embedding, get("input_layernorm")), normed], -1)
        else:
            residual, read = state, rms(state, get("input_layernorm"))
        q, k, v = ((read @ get(f"self_attn.{name}_proj").T).view(count, -1, 8) for name in "qkv")
        if shape.layer["model_type"] == "qwen3":
            q, k = rms(q, get("self_attn.q_norm")), rms(k, get("self_attn.k_norm"))
        q, k = turned(q, positions), turned(k, positions).repeat_interleave(2, 1)
        score = torch.einsum("qhd,khd->hqk", q, k) * 8**-0.5
        weight = score.masked_fill(~mask, float("-inf")).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weight, v.repeat_interleave(2, 1)).reshape(count, -1)
        state = residual + mixed @ get("self_attn.o_proj").T
        inner = rms(state, get("post_attention_layernorm"))
        state = (
            state + (F.silu(inner @ get("mlp.gate_proj").T) * (inner @ get("mlp.up_proj").T)) @ get("mlp.down_proj").T
        )
    return state, rms(state, weights["norm.weight"])


def dense_drafts(draft, tokens, states, steps):
    """The engine's schedule with a full recomputation at every step (contract 4.2)."""
    weights, shape = dict(draft.named_parameters()), draft.shape
    joined = states.flatten(1)
    if shape.norm_before_fc:
        joined = rms(joined, weights["input_norm.weight"])
    if shape.fc_norm:
        joined = torch.cat(
            [rms(part, weights[f"fc_norm.{i}.weight"]) for i, part in enumerate(joined.split(WIDTH, 1))], 1
        )
    state, read, drafts, outputs = joined @ weights["fc.weight"].T, tokens[1:], [], []
    for _ in range(steps):
        positions = torch.arange(len(read))
        gap = positions[:, None] - positions
        mask = (gap >= 0) & (gap < (shape.sliding_window or len(read)))
        stream, output = dense_forward(draft, draft.embedding_VH[read], state, positions, mask)
        guess = draft.draft_to_target_D[(output[-1] @ weights["lm_head.weight"].T).argmax()]
        drafts.append(int(guess))
        outputs.append(output[-1])
        read = torch.cat([read, guess[None]])
        state = torch.cat([state, (output if shape.norm_output else stream)[-1:]])
    return drafts, torch.stack(outputs)


FLAGS = [
    {},
    {"norm_before_residual": False},
    {"norm_before_fc": True, "norm_output": True},
    {"fc_norm": True, "architecture": "qwen3"},
    {"layers": 2, "norm_output": True},
    {"layers": 2, "architecture": "qwen3", "norm_before_residual": False},
    {"sliding_window": 5},
    {"sliding_window": 2, "layers": 2},
    {"draft_vocab_size": None},
]


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_drafting_equals_a_dense_recomputation_of_the_engines_schedule(flags):
    draft = make_draft(**flags)
    tokens, states = sequence(14)
    proposals = EAGLE3.propose(draft, tokens, states, 4)
    assert proposals.shape == (13, 4)
    for last in (0, 1, 6, 12):
        want, outputs = dense_drafts(draft, tokens[: last + 2], states[: last + 1], 4)
        got = draft_steps(draft, tokens[: last + 2], states[: last + 1], 4)
        assert got.token_ids_K.tolist() == want == proposals[last].tolist()
        assert_near(got.output_KH, outputs)


def pack(lengths, prompts, seed=3):
    tokens, states = sequence(sum(lengths), seed)
    last = torch.randn(sum(lengths), WIDTH, generator=torch.Generator().manual_seed(seed + 1))
    document = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])
    mask = torch.cat([torch.arange(n) >= p for n, p in zip(lengths, prompts, strict=True)])
    return Batch(tokens, states, last, mask, document)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_training_equals_drafting_on_the_true_prefix_in_every_document(flags):
    draft = make_draft(**flags)
    batch = pack([9, 13, 6], [3, 5, 2])
    rows = rows_of(batch, 3)
    slots = rows.slot_S
    outputs = unroll(draft, batch, rows, 3)
    checked = 0
    for row, slot in enumerate(slots[rows.scored_R].tolist()):
        start = int((batch.document_S == batch.document_S[slot]).nonzero()[0])
        for step in range(3):
            if not rows.valid_RK[row, step]:
                continue
            # Feed the plain loop the true tokens: force each draft by reading the reply instead of the draft.
            want = forced_output(draft, batch, start, slot, step)
            assert_near(outputs[step][row], want)
            checked += 1
    assert checked == int(rows.valid_RK.sum()) > 20


def forced_output(draft, batch, start, slot, steps):
    document = torch.zeros(slot - start + 1, dtype=torch.long)
    context = slice(start, slot + 1)
    branches = draft.start(
        batch.token_ids_S[start + 1 : slot + 2], batch.aux_states_SAH[context], document, torch.tensor([slot - start])
    )
    for step in range(1, steps + 1):
        draft.extend(branches, batch.token_ids_S[slot + 1 + step][None])
    return branches.output_RH[0]


def test_supervision_sits_on_assistant_tokens_of_the_same_document_only():
    batch = pack([6, 5], [3, 2])
    rows = rows_of(batch, 3)
    document, mask = batch.document_S, batch.loss_mask_S
    for row, slot in enumerate(rows.slot_S[rows.scored_R].tolist()):
        assert mask[slot + 1]
        for step in range(3):
            target = slot + 1 + step
            want = target < 11 and bool(mask[target]) and int(document[target]) == int(document[slot])
            assert bool(rows.valid_RK[row, step]) == want
    assert rows.valid_RK[:, 0].all() and rows.valid_RK.sum(0).tolist() == [6, 4, 2]


def test_another_document_in_the_pack_does_not_change_the_loss_of_a_row():
    draft, teacher = make_draft(), Teacher.of(verifier_weights(), make_draft().draft_to_target_D)
    twin = pack([9, 9], [3, 3])
    for field in ("token_ids_S", "aux_states_SAH", "last_state_SH"):
        getattr(twin, field)[9:] = getattr(twin, field)[:9]
    single = Batch(*(getattr(twin, f)[:9] for f in twin.__dataclass_fields__ if f != "draw"))
    one, both = (loss(draft, teacher, batch, Config(speculative_tokens=3)).metrics for batch in (single, twin))
    assert both == pytest.approx(one, rel=1e-4)


def test_a_step_trains_the_draft_and_leaves_the_verifiers_part_alone():
    draft = make_draft()
    draft.lm_head.weight.requires_grad_(False)
    head, embedding = draft.lm_head.weight.clone(), draft.embedding_VH.clone()
    before = {name: p.detach().clone() for name, p in draft.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW([p for p in draft.parameters() if p.requires_grad], lr=1e-2)
    teacher = Teacher.of(verifier_weights(), draft.draft_to_target_D)
    loss(draft, teacher, pack([9, 13], [3, 5]), Config(speculative_tokens=3)).loss.backward()
    optimizer.step()
    assert torch.equal(head, draft.lm_head.weight) and torch.equal(embedding, draft.embedding_VH)
    assert all(not torch.equal(before[n], p) for n, p in draft.named_parameters() if n in before)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_export_and_restore_are_inverse(flags):
    draft = make_draft(**flags)
    content, tensors = EAGLE3.export(draft)
    again = EAGLE3.restore(content, tensors, verifier_weights())
    assert EAGLE3.export(again)[0] == content
    assert all(torch.equal(a, b) for a, b in zip(draft.state_dict().values(), again.state_dict().values(), strict=True))
    assert ("d2t" in tensors) == (draft.shape.draft_vocab_size != VOCABULARY)
    tokens, states = sequence(7)
    assert torch.equal(EAGLE3.propose(draft, tokens, states, 3), EAGLE3.propose(again, tokens, states, 3))


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations([None, 3, 5], 2)))
def test_a_sliding_window_changes_what_is_drafted_from(a, b):
    tokens, states = sequence(14)
    outputs = [draft_steps(make_draft(sliding_window=w), tokens, states[:13], 3).output_KH for w in (a, b)]
    assert not torch.allclose(*outputs, rtol=1e-3)
