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
    torch.testing.assert_close(newton_schulz._symmetric(x, x.T), x @ x.T)
    torch.testing.assert_close(newton_schulz._symmetric(x, x.T, plus, 0.5, 2.0), 2 * x @ x.T + 0.5 * plus)


GROUP = {"ns_coefficients": (3.4445, -4.775, 2.0315), "ns_steps": 5, "eps": 1e-7}
NARROW, WIDE = [(64, 64), (64, 80), (80, 64)], [(64, 160), (160, 64), (200, 60)]


def exact(matrix, steps=5):
    """The iteration as it is published, in float64."""
    a, b, c = GROUP["ns_coefficients"]
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).double()
    x = x / x.norm()
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def of_torch(matrix):
    """What `torch.optim.Muon` makes of it, in bfloat16."""
    parameter = torch.nn.Parameter(torch.zeros_like(matrix))
    parameter.grad = matrix
    options = {"momentum": 0.0, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}
    torch.optim.Muon([parameter], lr=1.0, weight_decay=0.0, **options).step()
    return -parameter.detach() / (newton_schulz.RMS * max(matrix.shape) ** 0.5)


@pytest.mark.parametrize(("shape", "times"), [(shape, 1.2) for shape in NARROW] + [(shape, 1.6) for shape in WIDE])
def test_it_is_about_as_near_to_the_exact_iteration_as_torch_is(shape, times):
    """Steps of a wide matrix round more products: 2 % of it in all, where its singular values lie up to 32 % off 1."""
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(2))
    wanted = exact(matrix)
    ours, theirs = ((f.double() - wanted).norm() for f in (newton_schulz.orthogonal(matrix, GROUP), of_torch(matrix)))
    assert ours <= times * theirs


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("shape", [*NARROW, *WIDE])
def test_without_rounding_it_is_the_exact_iteration(monkeypatch, shape, steps):
    monkeypatch.setattr(newton_schulz, "ROUNDED", torch.float32)
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(3))
    found = newton_schulz.orthogonal(matrix, GROUP | {"ns_steps": steps})
    torch.testing.assert_close(found, exact(matrix, steps).float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("tall", [False, True])
@pytest.mark.parametrize(
    "spectrum", ["i * 0 + 1", "1 / (i + 1)", "1 / (i + 1) ** 2", "torch.exp(-i / 8)", "(i < 8) + 1e-4"]
)
def test_rounding_keeps_the_singular_values_where_the_published_steps_have_them(spectrum, tall):
    """Small ones as well, which rounding could make grow without end."""
    i, draw = torch.arange(96.0), torch.Generator().manual_seed(4)
    left, right = (torch.linalg.qr(torch.randn(size, 96, generator=draw)).Q for size in (96, 288))
    matrix = left * eval(spectrum, {"i": i, "torch": torch}) @ right.T
    matrix = matrix.T if tall else matrix
    found, theirs, wanted = newton_schulz.orthogonal(matrix, GROUP).float(), of_torch(matrix), exact(matrix).float()
    ours_values, their_values = (torch.linalg.svdvals(x) for x in (found, theirs))
    near_1 = their_values > 0.6
    torch.testing.assert_close(ours_values[near_1], their_values[near_1], rtol=0, atol=0.05)
    assert (ours_values <= their_values + 0.05).all()
    ours_off, theirs_off = ((x - wanted).norm() / wanted.norm() for x in (found, theirs))
    assert ours_off <= 2 * theirs_off + 0.01
