"""Our Muon takes the steps of `torch.optim.Muon`."""

import pytest
import torch

from harness.training import newton_schulz
from harness.training.newton_schulz import Muon

SHAPES = [(40, 12), (12, 40), (30, 30), (8, 50)]


def trained(kind: type[torch.optim.Muon], **options: object) -> tuple[list[torch.Tensor], torch.optim.Muon]:
    draw = torch.Generator().manual_seed(0)
    matrices = [torch.nn.Parameter(torch.randn(*shape, generator=draw)) for shape in SHAPES]
    unused = torch.nn.Parameter(torch.randn(4, 4, generator=draw))
    optimizer = kind([*matrices, unused], lr=0.1, weight_decay=0.01, **options)
    for _ in range(3):
        for matrix in matrices:
            matrix.grad = torch.randn(*matrix.shape, generator=draw)
        optimizer.step()
    return [*matrices, unused], optimizer


@pytest.mark.parametrize("strip_rows", [7, 16, 144])
def test_steps_and_moments_are_those_of_torch(monkeypatch, strip_rows):
    monkeypatch.setattr(newton_schulz, "STRIP_ROWS", strip_rows)
    ours, our_optimizer = trained(Muon, adjust_lr_fn="match_rms_adamw")
    theirs, their_optimizer = trained(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).norm() <= 0.004 * other.norm()  # bfloat16 keeps three digits
    states = [optimizer.state_dict()["state"] for optimizer in (our_optimizer, their_optimizer)]
    assert states[0].keys() == states[1].keys() == {0, 1, 2, 3}
    for number in states[0]:
        assert torch.equal(states[0][number]["momentum_buffer"], states[1][number]["momentum_buffer"])


def test_a_symmetric_product_is_computed_whole():
    draw = torch.Generator().manual_seed(1)
    x, plus = torch.randn(300, 50, generator=draw), torch.randn(300, 300, generator=draw)
    plus = plus + plus.T
    torch.testing.assert_close(newton_schulz._symmetric(x), x @ x.T)
    torch.testing.assert_close(newton_schulz._symmetric(x, plus, 0.5, 2.0), 2 * x @ x.T + 0.5 * plus)


GROUP = {"ns_coefficients": (3.4445, -4.775, 2.0315), "ns_steps": 5, "eps": 1e-7}


def exact(matrix):
    """The iteration as it is published, in float64."""
    a, b, c = GROUP["ns_coefficients"]
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).double()
    x = x / x.norm()
    for _ in range(GROUP["ns_steps"]):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


@pytest.mark.parametrize("shape", [(64, 64), (64, 160), (160, 64), (200, 60)])
def test_it_is_as_near_to_the_exact_iteration_as_torch_is(shape):
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(2))
    theirs = torch.nn.Parameter(torch.zeros(*shape))
    theirs.grad = matrix
    torch.optim.Muon(
        [theirs], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False, adjust_lr_fn="match_rms_adamw"
    ).step()
    theirs_moved = -theirs.detach() / (newton_schulz.RMS * max(shape) ** 0.5)
    wanted = exact(matrix)
    errors = [(found.double() - wanted).norm() for found in (newton_schulz.orthogonal(matrix, GROUP), theirs_moved)]
    assert errors[0] <= 1.2 * errors[1]
