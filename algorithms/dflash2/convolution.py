"""A short convolution along the rows of one block, whose kernel follows the row it writes (contract 4.6).

Rows of a block are drafted side by side; the convolution lets each see the few before it, around attention and around
the MLP of every layer. Called by `model`.

Shape letters: R = blocks, T = rows of a block, J = taps, G = groups of channels, C = channels of a group, H = G * C.
"""

import torch
from torch import Tensor, nn

READ, WRITTEN = 0, 1  # sides of a sublayer: what it reads, what it wrote


class GroupedDynamicConvolution(nn.Module):
    """One fixed kernel a channel plus a part that each row computes for itself, shared by a group of channels.

    Starts as the identity.

    Args:
        width: H.
        taps: J, rows that a row sees, itself included.
        group_size: C; divides the width.
    """

    def __init__(self, width: int, taps: int, group_size: int) -> None:
        super().__init__()
        self.shape = (2, taps, width // group_size)
        self.base_kernel = nn.Parameter(torch.zeros(2, taps, width))
        self.kernel_projection = nn.Linear(width, 2 * taps * (width // group_size), bias=False)
        with torch.no_grad():
            self.base_kernel[:, 0] = 1.0
            self.kernel_projection.weight.zero_()

    def kernels(self, normed_RTH: Tensor) -> Tensor:
        """The rows' own part of both sides' kernels, [R, T, 2, J, G], from what the sublayer reads."""
        return self.kernel_projection(normed_RTH).unflatten(-1, self.shape)

    def forward(self, x_RTH: Tensor, kernels_RT2JG: Tensor, side: int) -> Tensor:
        """Convolve along T within each block; the first rows see fewer taps. Float32 inside, the dtype of `x` outside.

        Args:
            side: `READ` or `WRITTEN`.
        """
        _, taps, groups = self.shape
        x_RTGC = x_RTH.float().unflatten(-1, (groups, -1))
        base_JGC = self.base_kernel[side].float().unflatten(-1, (groups, -1))
        own_RTJG = kernels_RT2JG[:, :, side].float()
        rows = x_RTH.shape[1]
        mixed = x_RTGC * (base_JGC[0] + own_RTJG[:, :, 0, :, None])
        for tap in range(1, min(taps, rows)):
            kernel = base_JGC[tap] + own_RTJG[:, tap:, tap, :, None]
            mixed = mixed + nn.functional.pad(kernel * x_RTGC[:, :-tap], (0, 0, 0, 0, tap, 0))
        return mixed.flatten(-2).to(x_RTH.dtype)
