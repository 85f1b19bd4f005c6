"""The vectorised draft against a plain dense loop, training against drafting, and the gradient of the loss."""

import itertools

import pytest
import torch

import algorithms
from algorithms.eagle3.config import Config
from algorithms.eagle3.drafting import draft_steps
from algorithms.eagle3.training import loss, rows_of, unroll
from algorithms.features import Teacher
from tests.algorithms.dense import dense_forward, rms
from tests.algorithms.small import (
    WIDTH,
    alone_and_twice,
    assert_near,
    check_a_step,
    check_export_and_restore,
    make_draft,
    pack,
    sequence,
    start_of_document,
    verifier_weights,
)

EAGLE3 = algorithms.load("eagle3")


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
    draft = make_draft("eagle3", **flags)
    tokens, states = sequence(14)
    proposals = EAGLE3.propose(draft, tokens, states, 4)
    assert proposals.shape == (13, 4)
    for last in (0, 1, 6, 12):
        want, outputs = dense_drafts(draft, tokens[: last + 2], states[: last + 1], 4)
        got = draft_steps(draft, tokens[: last + 2], states[: last + 1], 4)
        assert got.token_ids_K.tolist() == want == proposals[last].tolist()
        assert_near(got.output_KH, outputs)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_training_equals_drafting_on_the_true_prefix_in_every_document(flags):
    draft = make_draft("eagle3", **flags)
    batch = pack([9, 13, 6], [3, 5, 2])
    rows = rows_of(batch, 3)
    slots = rows.slot_S
    outputs = unroll(draft, batch, rows, 3)
    checked = 0
    for row, slot in enumerate(slots[rows.scored_R].tolist()):
        start = start_of_document(batch, slot)
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
    draft, teacher = make_draft("eagle3"), Teacher.of(verifier_weights(), make_draft("eagle3").draft_to_target_D)
    one, both = (loss(draft, teacher, batch, Config(speculative_tokens=3)).metrics for batch in alone_and_twice())
    assert both == pytest.approx(one, rel=1e-4)


def test_a_step_trains_the_draft_and_leaves_the_verifiers_part_alone():
    draft = make_draft("eagle3")
    teacher = Teacher.of(verifier_weights(), draft.draft_to_target_D)
    check_a_step(draft, lambda batch: loss(draft, teacher, batch, Config(speculative_tokens=3)))


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_export_and_restore_are_inverse(flags):
    check_export_and_restore("eagle3", make_draft("eagle3", **flags))


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations([None, 3, 5], 2)))
def test_a_sliding_window_changes_what_is_drafted_from(a, b):
    tokens, states = sequence(14)
    outputs = [draft_steps(make_draft("eagle3", sliding_window=w), tokens, states[:13], 3).output_KH for w in (a, b)]
    assert not torch.allclose(*outputs, rtol=1e-3)
