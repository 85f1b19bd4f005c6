"""How much each position of a drafted block counts: later tokens are used only if all before them were accepted.

Contract 6.3. Shape letters: R = blocks, B = scored positions of a block.
"""

import torch
from torch import Tensor


def exponential_decay(count: int, gamma: float, device: torch.device | None = None) -> Tensor:
    """float32 [B]: exp(-k / gamma) for k = 0 .. count - 1."""
    return torch.exp(-torch.arange(count, dtype=torch.float32, device=device) / gamma)


def dpace(cross_entropy_RB: Tensor, valid_RB: Tensor, alpha: float) -> Tensor:
    """D-PACE weights, float32 [R, B]: how much of the expected accepted length runs through each position.

    A position is reached with probability P_k, the product over j <= k of s_j = (1 - alpha) q_j + alpha, where q_j is
    the draft's probability of the verifier's token (1 where a position is not scored). Its weight is the sum of P_m
    over the scored m >= k.

    Args:
        cross_entropy_RB: -log q of the verifier's first choice, in nats.
        valid_RB: bool, positions that are scored.
        alpha: smoothing in 0..1; 0 trusts the draft's own probabilities.
    """
    share_RB = torch.where(valid_RB, (1 - alpha) * torch.exp(-cross_entropy_RB.float()) + alpha, 1.0)
    reached_RB = share_RB.cumprod(dim=1) * valid_RB
    return reached_RB.flip(1).cumsum(dim=1).flip(1) * valid_RB
