"""Muon that computes half of every symmetric product, and multiplies a wide matrix four times instead of ten:
`torch.optim.Muon`'s step in 0.7 of its time on a CPU.

Used by `optimizers`, and by `muon` where several processes train. At packs of a thousand tokens, making matrices
orthogonal is a third of a step of training.

Shape letters: M = rows of a matrix that is at least as wide as high, K = its columns.
"""

import math
from typing import Any

import torch
from torch import Tensor

STRIP_ROWS = 144  # of a product on a CPU: fewer would not keep its units busy
# A matrix this much wider than high takes its steps in stretches of so many. In a longer one the rounding of x x^T,
# which each step makes 12 times as large where a singular value is small, would outgrow that value.
GRAM_WIDTH, GRAM_STEPS = 1.5, 3
RMS = 0.2  # of an update, as large as AdamW's (arXiv 2502.16982)
ROUNDED = torch.bfloat16  # what matrices are made orthogonal in


class Muon(torch.optim.Muon):
    """`torch.optim.Muon`, made with `adjust_lr_fn="match_rms_adamw"`; its state is the same."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every matrix that has a gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    if group["weight_decay"]:
                        matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(orthogonal(self._update(matrix, group), group), alpha=-length(matrix, group))

    def _update(self, matrix: Any, group: dict[str, Any]) -> Tensor:
        """The gradient with momentum."""
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        momentum = state["momentum_buffer"].lerp_(matrix.grad, 1 - group["momentum"])
        return matrix.grad.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum


def length(matrix: Tensor, group: dict[str, Any]) -> float:
    """What the singular values of a step are."""
    return group["lr"] * RMS * math.sqrt(max(matrix.shape))


def orthogonal(matrix: Tensor, group: dict[str, Any]) -> Tensor:
    """The matrix with its singular values near 1, bfloat16: Newton-Schulz steps with the group's coefficients."""
    tall = matrix.shape[0] > matrix.shape[1]
    x_MK = (matrix.T if tall else matrix).to(ROUNDED, memory_format=torch.contiguous_format)
    x_MK = x_MK / x_MK.norm().clamp(min=group["eps"])
    stretch = GRAM_STEPS if x_MK.shape[1] >= GRAM_WIDTH * x_MK.shape[0] else 1
    for done in range(0, group["ns_steps"], stretch):
        x_MK = _steps(x_MK, min(stretch, group["ns_steps"] - done), *group["ns_coefficients"])
    return x_MK.T if tall else x_MK


def _steps(x_MK: Tensor, count: int, a: float, b: float, c: float) -> Tensor:
    """`count` steps x -> (a + b x x^T + c (x x^T)^2) x in two products with x.

    What x is multiplied with in each step commutes with x x^T, and so do their products, which are symmetric: the x x^T
    of the next step is made of this step's.
    """
    gram_MM = _symmetric(x_MK, x_MK.T)
    if count == 1:
        return torch.addmm(x_MK, _symmetric(gram_MM, gram_MM, gram_MM, b, c), x_MK, beta=a)
    factor_MM = step_MM = _multiplier(gram_MM, a, b, c)
    for _ in range(1, count):
        gram_MM = _symmetric(_symmetric(gram_MM, step_MM), step_MM)
        step_MM = _multiplier(gram_MM, a, b, c)
        factor_MM = _symmetric(step_MM, factor_MM)
    return factor_MM @ x_MK


def _multiplier(gram_MM: Tensor, a: float, b: float, c: float) -> Tensor:
    """a + b gram + c gram^2."""
    multiplier_MM = _symmetric(gram_MM, gram_MM, gram_MM, b, c)
    diagonal_M = multiplier_MM.diagonal()
    diagonal_M.copy_(diagonal_M.float() + a)  # to a bfloat16 tensor, `a` would be added rounded
    return multiplier_MM


def _symmetric(
    left_MK: Tensor, right_KM: Tensor, plus_MM: Tensor | None = None, beta: float = 0.0, alpha: float = 1.0
) -> Tensor:
    """alpha * left right + beta * plus, both of them symmetric: strips from the diagonal on, mirrored."""
    rows = left_MK.shape[0]
    width = STRIP_ROWS if left_MK.device.type == "cpu" else rows
    product_MM = left_MK.new_empty(rows, rows)
    for start in range(0, rows, width):
        stop = min(start + width, rows)
        ours, theirs = left_MK[start:stop], right_KM[:, start:]
        if plus_MM is None:
            strip = ours @ theirs
        else:
            strip = torch.addmm(plus_MM[start:stop, start:], ours, theirs, beta=beta, alpha=alpha)
        product_MM[start:stop, start:] = strip
        product_MM[stop:, start:stop] = strip[:, stop - start :].T
    return product_MM
