"""The fused loss through the head against autograd in float64; position weights against their definition."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import losses
from algorithms.features import Teacher
from algorithms.losses import CHUNK_ROWS_MIN, LOSSES, STRETCH, Targets, chunk_rows, head_loss, largest
from algorithms.positions import dpace, exponential_decay

CHUNK_ROWS, PIECE_ROWS = 100, 30
ROWS, PLACES, WIDTH, VOCABULARY = 2 * CHUNK_ROWS + 9, 50, 6, 9


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(losses, "CHUNK_LOGITS_CPU", CHUNK_ROWS * VOCABULARY)
    monkeypatch.setattr(losses, "PIECE_LOGITS_CPU", PIECE_ROWS * VOCABULARY)


def by_hand(name, p, q):
    """A loss of contract 6.0 from probabilities, row by row."""
    overlap = torch.minimum(p, q).sum(-1)
    kl, tv = (p * (p / q).log()).sum(-1), 1 - overlap
    middle = (p + q) / 2
    share = torch.exp(-3 * overlap.detach())
    return {
        "kl_div": kl,
        "reverse_kl": (q * (q / p).log()).sum(-1),
        "jsd": ((p * (p / middle).log()).sum(-1) + (q * (q / middle).log()).sum(-1)) / 2,
        "ce": -q.gather(-1, p.argmax(-1, keepdim=True)).squeeze(-1).log(),
        "tv": tv,
        "nla": -overlap.log(),
        "lk_hybrid": share * kl + (1 - share) * tv,
    }[name]


def case():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    parts = [(draw(ROWS, WIDTH), draw(VOCABULARY, WIDTH)), (draw(ROWS, 2), draw(VOCABULARY, 2))]
    teacher = Teacher(draw(VOCABULARY, WIDTH).float(), torch.ones(WIDTH), 1e-6)
    target = torch.randint(0, PLACES, (ROWS,), generator=generator)
    weight = torch.rand(ROWS, generator=generator)
    weight[::7] = 0
    return parts, Targets(teacher, draw(PLACES, WIDTH).float()), target, weight


def teacher_probabilities(targets, target):
    state = targets.state_PH.double()
    normed = state * (state.pow(2).mean(-1, keepdim=True) + targets.teacher.epsilon).rsqrt()
    return (normed @ targets.teacher.head_DH.double().T).softmax(-1)[target]


SUMS = [{"kl_div": 0.25, "tv": 2.0}, {"ce": 1.0, "nla": 0.5, "jsd": 0.5}]


@pytest.mark.parametrize("loss", [{name: 1.0} for name in LOSSES] + SUMS, ids=str)
def test_every_loss_and_all_its_gradients_equal_autograd_in_float64(loss):
    parts, targets, target, weight = case()
    flat = [tensor.float().requires_grad_() for part in parts for tensor in part]
    scores = head_loss([(flat[0], flat[1]), (flat[2], flat[3])], targets, target, weight, loss, 3, overlap=True)
    (scores.loss * 2).backward()
    exact = [tensor.requires_grad_() for part in parts for tensor in part]
    q = (exact[0] @ exact[1].T + exact[2] @ exact[3].T).softmax(-1)
    p = teacher_probabilities(targets, target)
    rows = sum(share * by_hand(name, p, q) for name, share in loss.items())
    ((rows * weight).sum() * 2).backward()
    assert scores.loss.item() == pytest.approx((rows * weight).sum().item(), rel=1e-5)
    torch.testing.assert_close(scores.loss_R, rows.float(), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(flat, exact, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad.float(), rtol=1e-3, atol=1e-4)
    assert scores.candidate_RC.tolist() == q.topk(3).indices.tolist()
    assert scores.target_choice_R.tolist() == p.argmax(-1).tolist()
    torch.testing.assert_close(scores.overlap_R, torch.minimum(p, q).sum(-1).float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_reduced_precision_around_it_reaches_no_part_of_it(loss):
    parts, targets, target, weight = case()
    found = []
    for reduced in (False, True):
        hidden, head = (tensor.bfloat16().requires_grad_() for tensor in parts[0])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=reduced):
            scores = head_loss([(hidden, head)], targets, target, weight, {loss: 1.0}, overlap=True)
        scores.loss.backward()
        found.append((scores.loss, scores.loss_R, scores.overlap_R, hidden.grad, head.grad))
    # The teacher's own product is reduced by then, as in training: no more than that differs.
    assert all(a.dtype == b.dtype for a, b in zip(*found, strict=True))
    torch.testing.assert_close(found[0][1], found[1][1], rtol=0.05, atol=0.02)


def test_a_part_that_asks_for_no_gradient_gets_none_and_changes_no_other():
    parts, targets, target, weight = case()
    (hidden, head), (extra, extra_head) = [(a.float(), b.float()) for a, b in parts]
    hidden.requires_grad_()
    head_loss([(hidden, head), (extra, extra_head)], targets, target, weight, {"kl_div": 1.0}).loss.backward()
    alone = hidden.grad.clone()
    hidden.grad = None
    head.requires_grad_()
    head_loss([(hidden, head), (extra, extra_head)], targets, target, weight, {"kl_div": 1.0}).loss.backward()
    assert torch.equal(alone, hidden.grad)
    assert extra.grad is None and extra_head.grad is None and head.grad.abs().sum() > 0


def test_a_row_of_weight_zero_gets_no_gradient():
    parts, targets, target, weight = case()
    hidden = parts[0][0].float().requires_grad_()
    head_loss([(hidden, parts[0][1].float())], targets, target, weight, {"tv": 1.0}).loss.backward()
    assert not hidden.grad[weight == 0].any() and hidden.grad[weight > 0].any(dim=-1).all()


def test_losses_stay_finite_where_draft_and_verifier_are_certain_and_disagree():
    teacher = Teacher(torch.eye(4) * 100, torch.ones(4), 1e-6)
    targets = Targets(teacher, torch.eye(4)[:1] * 5)
    for name in LOSSES:
        hidden = (torch.eye(4)[1:2] * 300).requires_grad_()
        scores = head_loss([(hidden, torch.eye(4))], targets, torch.tensor([0]), torch.ones(1), {name: 1.0})
        scores.loss.backward()
        assert torch.isfinite(scores.loss) and torch.isfinite(hidden.grad).all(), name


@given(st.integers(1, 300_000))
def test_a_chunk_has_as_many_logits_whatever_the_vocabulary(vocabulary):
    head = torch.empty(vocabulary, 1, device="meta")
    rows = chunk_rows(head)
    assert rows == CHUNK_ROWS_MIN or losses.CHUNK_LOGITS - vocabulary < rows * vocabulary <= losses.CHUNK_LOGITS


@given(st.integers(1, 4), st.integers(1, 40 * STRETCH), st.integers(1, 16), st.integers(0, 9))
@settings(deadline=None, max_examples=40)
def test_the_largest_are_those_of_a_plain_search(rows, columns, count, seed):
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    count = min(count, columns)
    assert largest(x, count).tolist() == x.topk(count).indices.tolist()


def test_of_equal_numbers_the_first_is_the_largest():
    assert largest(torch.zeros(2, 5 * STRETCH), 1).tolist() == [[0], [0]]


def test_decay_is_exponential_from_the_first_position():
    assert exponential_decay(3, 4.0).tolist() == pytest.approx([1.0, math.exp(-0.25), math.exp(-0.5)])


@given(
    st.lists(st.lists(st.tuples(st.floats(0, 8), st.booleans()), min_size=4, max_size=4), min_size=1, max_size=3),
    st.floats(0, 1),
)
def test_dpace_weights_equal_their_definition(blocks, alpha):
    entropy = torch.tensor([[value for value, _ in block] for block in blocks])
    valid = torch.tensor([[scored for _, scored in block] for block in blocks])
    found = dpace(entropy, valid, alpha)
    for row, block in enumerate(blocks):
        reached, share = [], 1.0
        for value, scored in block:
            share *= (1 - alpha) * math.exp(-value) + alpha if scored else 1.0
            reached.append(share)
        want = [sum(reached[m] for m in range(k, 4) if block[m][1]) if block[k][1] else 0.0 for k in range(4)]
        assert found[row].tolist() == pytest.approx(want, rel=1e-4, abs=1e-6)
