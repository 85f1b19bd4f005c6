"""Losses between a draft's logits and the verifier's distribution, in float32 and in chunks of rows.

The output head is as wide as the vocabulary, so its logits are the largest tensor of training by far. The function
here computes loss and gradient of a chunk at once and keeps only the gradients of what the head reads: no tensor of
[rows, vocabulary] or [positions, vocabulary] waits for the backward pass, whatever the vocabulary.

Shape letters: R = rows, P = target positions, H = verifier width, W = width of one part, D = draft vocabulary,
C = candidates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algorithms.features import Teacher

# Logits of a chunk, whatever the vocabulary, so that memory does not grow with it: on a CPU as many as its caches hold,
# elsewhere as many as keep the device busy.
CHUNK_LOGITS_CPU, CHUNK_LOGITS = 1 << 21, 1 << 26
CHUNK_ROWS_MIN = 8  # fewer only read the head more often
PIECE_LOGITS_CPU = 1 << 18  # one core's own cache holds them in float32
STRETCH = 128  # columns whose largest number is found at once
TINY = 1e-30  # under any float32 probability that matters; keeps logarithms finite
LK_SHARPNESS = 3.0

Part = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Targets:
    """The verifier's distributions that rows are scored against, computed when a chunk needs them.

    Attributes:
        teacher: the verifier's final norm and head rows.
        state_PH: its residual stream at the target positions, before that norm.
    """

    teacher: Teacher
    state_PH: Tensor

    def log_probabilities(self, target_R: Tensor) -> tuple[Tensor, Tensor]:
        """(float32 [U, D] of the distinct targets of ascending `target_R`, which of them each row has [R])."""
        distinct, of_row_R = torch.unique_consecutive(target_R, return_inverse=True)
        return self.teacher.log_probabilities(self.state_PH[distinct]), of_row_R


@dataclass(frozen=True)
class Scores:
    """What `head_loss` found. Only `loss` has a gradient.

    Attributes:
        loss: sum over rows of weight * loss.
        loss_R: float32, before the weights.
        candidate_RC: draft ids of the largest logits, descending.
        target_choice_R: the verifier's first choice within the draft vocabulary, as a draft id.
        overlap_R: float32 sum over tokens of min(p, q): how often sampling would accept the draft's guess.
    """

    loss: Tensor
    loss_R: Tensor
    candidate_RC: Tensor
    target_choice_R: Tensor
    overlap_R: Tensor


class _Wanted:
    """The verifier's distributions p at the distinct targets of some rows: what depends on them alone."""

    def __init__(self, log_p_UD: Tensor) -> None:
        self.log_p_UD, self.p_UD = log_p_UD, log_p_UD.exp()
        self.choice_U = largest(log_p_UD, 1).squeeze(1)

    @cached_property
    def certainty_U(self) -> Tensor:
        return (self.p_UD * self.log_p_UD).sum(dim=-1)


class _Chunk:
    """Distributions of some rows: p of the verifier, q of the draft. Most is computed when a loss asks for it.

    Args:
        wanted: of the distinct targets. of_row_R: the target of each row.
        logits_RD: the draft's.
        candidates: how many of the largest logits to find.
    """

    def __init__(self, wanted: _Wanted, of_row_R: Tensor, logits_RD: Tensor, candidates: int) -> None:
        self._wanted, self._of_row_R, self._logits_RD = wanted, of_row_R, logits_RD
        self.choice = wanted.choice_U[of_row_R]
        self.candidates = largest(logits_RD, candidates)
        self.q = logits_RD.softmax(dim=-1)
        best_R1 = self.candidates[:, :1]
        # The logarithm of the sum of exponentials, from the largest: q there is no less than one over the vocabulary.
        self._scale_R1 = logits_RD.gather(1, best_R1) - self.q.gather(1, best_R1).log()

    @cached_property
    def p(self) -> Tensor:
        return self._wanted.p_UD.index_select(0, self._of_row_R)

    @cached_property
    def log_p(self) -> Tensor:
        return self._wanted.log_p_UD.index_select(0, self._of_row_R)

    @cached_property
    def log_q(self) -> Tensor:
        return self._logits_RD - self._scale_R1

    @cached_property
    def gap(self) -> Tensor:
        """q - p."""
        return self.q - self.p

    @cached_property
    def kl(self) -> Tensor:
        """Of q from p: the sums over p of its own logarithm and of the draft's logits are all that it takes."""
        certainty_R = self._wanted.certainty_U[self._of_row_R]
        return certainty_R - (self.p * self._logits_RD).sum(dim=-1) + self._scale_R1.squeeze(1)

    @cached_property
    def overlap(self) -> Tensor:
        """Sum of min(p, q), however small."""
        return torch.minimum(self.p, self.q).sum(dim=-1)

    @property
    def overlap_rounded(self) -> Tensor:
        """The overlap to six decimals, sooner: p and q both sum to 1."""
        return (1 - 0.5 * self.gap.abs().sum(dim=-1)).clamp(0, 1)


def largest(x_RD: Tensor, count: int) -> Tensor:
    """Columns of the `count` largest numbers of each row, descending, int64 [R, count].

    First the largest of every stretch of columns, which is fast, then those within the best stretches.
    """
    whole = x_RD.shape[1] // STRETCH
    if whole <= count:
        return x_RD.topk(count, dim=-1).indices if count > 1 else x_RD.argmax(dim=-1, keepdim=True)
    column_D = torch.arange(x_RD.shape[1], device=x_RD.device)
    stretch_RC = largest(x_RD[:, : whole * STRETCH].unflatten(1, (whole, STRETCH)).amax(dim=-1), count)
    inside_RE = (stretch_RC[..., None] * STRETCH + column_D[:STRETCH]).flatten(1)
    rest_RE = column_D[whole * STRETCH :].expand(len(x_RD), -1)
    column_RE = torch.cat((inside_RE, rest_RE), dim=1)
    found_RE = x_RD.gather(1, column_RE)
    return column_RE.gather(1, found_RE.topk(count, dim=-1).indices if count > 1 else found_RE.argmax(-1, keepdim=True))


def _through_softmax(q: Tensor, slope_q: Tensor) -> Tensor:
    """From a derivative by probabilities to one by logits."""
    return q * (slope_q - (q * slope_q).sum(dim=-1, keepdim=True))


def _kl_div(c: _Chunk) -> tuple[Tensor, Tensor]:
    return c.kl, c.gap


def _reverse_kl(c: _Chunk) -> tuple[Tensor, Tensor]:
    ratio = c.log_q - c.log_p
    value = (c.q * ratio).sum(dim=-1)
    return value, c.q * (ratio - value[:, None])


def _jsd(c: _Chunk) -> tuple[Tensor, Tensor]:
    log_middle = (0.5 * (c.p + c.q)).clamp_min(TINY).log()
    slope = 0.5 * (c.log_q - log_middle)
    value = 0.5 * (c.p * (c.log_p - log_middle)).sum(dim=-1) + (c.q * slope).sum(dim=-1)
    return value, _through_softmax(c.q, slope)


def _ce(c: _Chunk) -> tuple[Tensor, Tensor]:
    chosen = c.choice[:, None]
    return -c.log_q.gather(-1, chosen).squeeze(-1), c.q.scatter_add(-1, chosen, torch.full_like(c.q[:, :1], -1.0))


def _tv(c: _Chunk) -> tuple[Tensor, Tensor]:
    return 1 - c.overlap, _through_softmax(c.q, -(c.q < c.p).float())


def _nla(c: _Chunk) -> tuple[Tensor, Tensor]:
    overlap = c.overlap.clamp_min(TINY)
    return -overlap.log(), _tv(c)[1] / overlap[:, None]


def _lk_hybrid(c: _Chunk) -> tuple[Tensor, Tensor]:
    share = torch.exp(-LK_SHARPNESS * c.overlap)  # a constant to the gradient
    (kl, kl_slope), (tv, tv_slope) = _kl_div(c), _tv(c)
    return share * kl + (1 - share) * tv, share[:, None] * kl_slope + (1 - share[:, None]) * tv_slope


# Of each loss (contract 6.0): rows of distributions -> (value [R], derivative by the draft's logits [R, D]).
LOSSES: dict[str, Callable[[_Chunk], tuple[Tensor, Tensor]]] = {
    "kl_div": _kl_div,
    "reverse_kl": _reverse_kl,
    "jsd": _jsd,
    "ce": _ce,
    "tv": _tv,
    "nla": _nla,
    "lk_hybrid": _lk_hybrid,
}


def _weighted(chunk: _Chunk, loss: Mapping[str, float]) -> tuple[Tensor, Tensor]:
    values, slopes = zip(*(LOSSES[name](chunk) for name in loss), strict=True)
    if list(loss.values()) == [1.0]:
        return values[0], slopes[0]
    shares = list(loss.values())
    value = sum(share * value for share, value in zip(shares, values, strict=True))
    return value, sum(share * slope for share, slope in zip(shares, slopes, strict=True))


@dataclass
class _Job:
    """What a chunk is scored with, beside the tensors that autograd must see."""

    targets: Targets
    target_R: Tensor
    weight_R: Tensor
    loss: Mapping[str, float]
    candidates: int
    overlap: bool


def chunk_rows(head: Tensor) -> int:
    """Rows that are scored at once through `head` [D, W]."""
    logits = CHUNK_LOGITS_CPU if head.device.type == "cpu" else CHUNK_LOGITS
    return max(CHUNK_ROWS_MIN, logits // head.shape[0])


def piece_rows(head: Tensor) -> int:
    """Rows of a chunk whose probabilities are computed at once."""
    return max(1, PIECE_LOGITS_CPU // head.shape[0]) if head.device.type == "cpu" else chunk_rows(head)


class _HeadLoss(torch.autograd.Function):
    """Weighted sum of row losses through the head, with all gradients made on the way."""

    @staticmethod
    def forward(ctx: Any, job: _Job, *flat: Tensor) -> tuple[Tensor, ...]:
        # The sum of the parts' products is one product of all parts side by side.
        widths = [head.shape[1] for head in flat[1::2]]
        hidden_RW, head_DW = (s[0] if len(s) == 1 else torch.cat(s, dim=1) for s in (flat[::2], flat[1::2]))
        sides = _Sides(hidden_RW, head_DW, widths)
        found, wanted = _Found.empty(sides.hidden_RW, job), ctx.needs_input_grad[1:]
        by_hidden_RW = torch.zeros_like(sides.hidden_RW) if any(wanted[::2]) else None
        # A head's gradient is a sum over all chunks: float32, whatever the head is.
        by_heads = [
            torch.zeros_like(head, dtype=torch.float32) if wants else None
            for head, wants in zip(flat[1::2], wanted[1::2], strict=True)
        ]
        # Rows of one target lie together, so that a chunk computes each of its targets once.
        for rows in job.target_R.argsort(stable=True).split(chunk_rows(flat[1])):
            _score(rows, job, sides, found, by_hidden_RW, by_heads)
        by_parts = [None] * len(widths) if by_hidden_RW is None else by_hidden_RW.split(widths, dim=1)
        gradients = [gradient for part in zip(by_parts, by_heads, strict=True) for gradient in part]
        ctx.save_for_backward(*(g if wants else None for g, wants in zip(gradients, wanted, strict=True)))
        ctx.mark_non_differentiable(*found.tensors)
        return (found.loss_R * job.weight_R).sum(), *found.tensors

    @staticmethod
    def backward(ctx: Any, weighted_gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(None if g is None else g * weighted_gradient for g in ctx.saved_tensors)


class _Sides(NamedTuple):
    """What the head reads, and the head: all parts side by side, each as wide as `widths` says."""

    hidden_RW: Tensor
    head_DW: Tensor
    widths: list[int]


def _score(
    rows: Tensor,
    job: _Job,
    sides: _Sides,
    found: "_Found",
    by_hidden_RW: Tensor | None,
    by_heads: Sequence[Tensor | None],
) -> None:
    """One chunk: keep what was found, add its derivatives. What it takes is free again before the next one starts."""
    hidden_CW = sides.hidden_RW.index_select(0, rows)
    slope_CD = hidden_CW @ sides.head_DW.T  # the logits until their slopes are known
    log_p_UD, of_row_C = job.targets.log_probabilities(job.target_R[rows])
    wanted = _Wanted(log_p_UD)
    pieces = (x.split(piece_rows(sides.head_DW)) for x in (rows, of_row_C, slope_CD))
    for piece, of_row_R, slope_RD in zip(*pieces, strict=True):
        chunk = _Chunk(wanted, of_row_R, slope_RD.float(), job.candidates)
        value, slope = _weighted(chunk, job.loss)
        found.keep(piece, chunk, value, job)
        slope_RD.copy_(slope)
    weight_C1 = job.weight_R[rows, None]  # multiplied on the narrow side
    if by_hidden_RW is not None:
        by_hidden_RW[rows] = ((slope_CD @ sides.head_DW) * weight_C1).to(by_hidden_RW.dtype)
    first = 0
    for by_head, width in zip(by_heads, sides.widths, strict=True):
        if by_head is not None:
            read = hidden_CW[:, first : first + width] * weight_C1
            by_head += slope_CD.T @ read.to(slope_CD.dtype)
        first += width


@dataclass
class _Found:
    loss_R: Tensor
    candidate_RC: Tensor
    choice_R: Tensor
    overlap_R: Tensor

    @classmethod
    def empty(cls, like: Tensor, job: _Job) -> "_Found":
        rows, device = like.shape[0], like.device
        numbers = torch.zeros(rows, dtype=torch.long, device=device)
        floats = torch.zeros(rows, device=device)
        return cls(floats, numbers.new_zeros(rows, job.candidates), numbers, floats.clone())

    def keep(self, rows: Tensor, chunk: _Chunk, value_R: Tensor, job: _Job) -> None:
        self.loss_R[rows] = value_R
        self.candidate_RC[rows] = chunk.candidates
        self.choice_R[rows] = chunk.choice
        if job.overlap:
            self.overlap_R[rows] = chunk.overlap_rounded

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.loss_R, self.candidate_RC, self.choice_R, self.overlap_R


def head_loss(
    parts: Sequence[Part],
    targets: Targets,
    target_R: Tensor,
    weight_R: Tensor,
    loss: Mapping[str, float],
    candidates: int = 1,
    overlap: bool = False,
) -> Scores:
    """Loss of the draft against the verifier through the output head.

    Args:
        parts: (what the head reads [R, W], head [D, W]) of each part; the logits are the sum of their products.
            Gradients reach every part that asks for one.
        targets: the verifier's distributions.
        target_R: which of them each row should match, int64 [R].
        weight_R: float32 [R]; 0 leaves a row out.
        loss: weight by name of `LOSSES`.
        candidates: C, how many of the largest logits to name.
        overlap: fill in `Scores.overlap_R` (zeros otherwise).
    """
    job = _Job(targets, target_R, weight_R, loss, candidates, overlap)
    flat = [tensor for part in parts for tensor in part]
    return Scores(*_HeadLoss.apply(job, *flat))
