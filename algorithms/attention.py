"""Attention of packed documents with drafted positions behind some rows: a branch that grows, or a block at once.

A row that drafts sees the true keys of its own document, and then only the keys of its own branch or block (contract
4.2, 4.4, 6.1: diagonal blocks). These two shapes serve training and drafting alike, so they are written once.

Shape letters: R = packed rows (of blocks: their anchors), B = documents, L = longest document, Q = most query rows in
a document, C = tiles, T = rows of a block, N = query heads, G = key-value heads, D = head size, J = branch steps.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from algorithms import flex as sparse

STRETCHES = 4  # of tiles: more would be too small to keep a device busy


@dataclass(frozen=True)
class Layout:
    """Where packed rows sit once every document is padded to the longest.

    Attributes:
        document_R: document number of each row.
        column_R: rank of each row among the rows of its document that are in this layout.
        position_R: position of each row within its document, from 0.
        shape: (documents B, columns of the longest).
    """

    document_R: Tensor
    column_R: Tensor
    position_R: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, document_S: Tensor) -> "Layout":
        """Every row of a pack whose documents stand one after another, numbered 0, 1, ... in `document_S`."""
        counts_B = torch.bincount(document_S)
        starts_B = counts_B.cumsum(0) - counts_B
        position_S = torch.arange(document_S.numel(), device=document_S.device) - starts_B[document_S]
        return cls(document_S, position_S, position_S, (counts_B.numel(), int(counts_B.max())))

    def take(self, rows_R: Tensor) -> "Layout":
        """The layout of some of the rows (ascending indices)."""
        document_R = self.document_R[rows_R]
        counts_B = torch.bincount(document_R, minlength=self.shape[0])
        starts_B = counts_B.cumsum(0) - counts_B
        column_R = torch.arange(rows_R.numel(), device=rows_R.device) - starts_B[document_R]
        return Layout(document_R, column_R, self.position_R[rows_R], (self.shape[0], max(1, int(counts_B.max()))))

    def tile(self, rows_R: Tensor, columns: int) -> "Tiles":
        """Like `take`, with documents of more than `columns` rows cut into several tiles, so that little is padded."""
        taken = self.take(rows_R)
        piece_R = taken.document_R * taken.shape[1] + taken.column_R // columns
        _, piece_R, counts_C = piece_R.unique_consecutive(return_inverse=True, return_counts=True)
        last_C = counts_C.cumsum(0) - 1
        reach_C, order_C = taken.position_R[last_C].sort(stable=True)
        place = order_C.argsort()[piece_R], taken.column_R % columns
        shape = counts_C.numel(), columns
        return Tiles(*place, taken.position_R, shape, taken.document_R[last_C][order_C], _stretches(reach_C.tolist()))

    def pad(self, x_R: Tensor, fill: float = 0.0) -> Tensor:
        """[R, ...] -> [B, columns, ...] with `fill` where a document has no row."""
        padded = x_R.new_full((self.shape[0] * self.shape[1], *x_R.shape[1:]), fill)
        return padded.index_copy_(0, self.slot_R, x_R).unflatten(0, self.shape)

    def unpad(self, x_BC: Tensor) -> Tensor:
        """[B, columns, ...] -> [R, ...]; the inverse of `pad`."""
        return x_BC.flatten(0, 1).index_select(0, self.slot_R)

    @property
    def slot_R(self) -> Tensor:
        """Place of each row among all padded ones."""
        return self.document_R * self.shape[1] + self.column_R


@dataclass(frozen=True)
class Stretch:
    """Tiles from `start` to before `stop`, whose rows stand behind `keys` context keys at most."""

    start: int
    stop: int
    keys: int


@dataclass(frozen=True)
class Tiles(Layout):
    """A layout whose B are tiles: a few rows of a document one after another. Those with few keys before them go first.

    Attributes:
        source_B: the document that each tile belongs to.
        stretches: tiles that attend together, so that little is padded.
    """

    source_B: Tensor
    stretches: list[Stretch]


def _stretches(reach: list[int]) -> list[Stretch]:
    """About equally many tiles each; `reach`, ascending, is how many keys stand before each tile's last row."""
    size = max(1, -(-len(reach) // STRETCHES))
    cuts = [0, *range(size, len(reach), size), len(reach)]
    return [Stretch(start, stop, max([1, *reach[start:stop]])) for start, stop in pairwise(cuts)]


@dataclass
class Keys:
    """Keys and values that one layer has seen: the true context of all documents, then the branch of each query row."""

    context: Layout
    key_BGLD: Tensor
    value_BGLD: Tensor
    branch: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @classmethod
    def of(cls, context: Layout, key_SGD: Tensor, value_SGD: Tensor) -> "Keys":
        """Pad the context's keys and values, [S, G, D] each, once for all steps."""
        return cls(context, context.pad(key_SGD).transpose(1, 2), context.pad(value_SGD).transpose(1, 2))

    def now(self) -> "Keys":
        """The same, whatever is added to the branch later."""
        return replace(self, branch=list(self.branch))

    def packed(self, own: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values of the context's rows one after another, [S, G, D] each, and the rows' own behind them."""
        keys, values = ([self.context.unpad(x.transpose(1, 2))] for x in (self.key_BGLD, self.value_BGLD))
        return torch.cat([*keys, *(key for key, _ in own)]), torch.cat([*values, *(value for _, value in own)])


# What rows see: a mask over padded rows and keys, or one over packed ones (`algorithms.flex`).
Seen = Tensor | sparse.Mask


def visible(context: Layout, queries: Layout, step: int, window: int | None, flex: bool = False) -> Seen:
    """bool [B, Q, L]: context keys that a query row sees at branch step `step`; with `flex` a mask over packed rows.

    A key at position j is seen by the row at position i when j <= i and, with a sliding window, (i + step) - j < window
    (contract 4.2: the window slides with the drafted position).
    """
    if flex and queries.position_R.numel():
        sides = (context.document_R, context.position_R), (queries.document_R, queries.position_R)
        return sparse.branch_mask(*sides, step, window)
    key_L = torch.arange(context.shape[1], device=context.position_R.device)
    # A column without a row sees key 0, so that its softmax stays finite; its result is never read.
    position_BQ = queries.pad(queries.position_R, fill=0)
    seen = key_L <= position_BQ[..., None]
    if window is not None:
        seen = seen & (position_BQ[..., None] + step - key_L < window)
    return seen


def attend(query_RND: Tensor, keys: Keys, queries: Layout, seen: Seen, window: int | None = None) -> Tensor:
    """Softmax attention over the visible context and the row's own branch.

    Args:
        query_RND: [R, N, D], already turned by its position.
        keys: context and branch of this layer; branch keys and values are [R, G, D], in the order of `queries`.
        seen: from `visible`.
        window: sliding window in tokens; a branch longer than that loses its oldest steps.

    Returns:
        [R, N * D] in the query's dtype; the softmax is float32.
    """
    if not isinstance(seen, Tensor):
        return sparse.attend(query_RND, *keys.packed(keys.branch), seen)
    heads, size = query_RND.shape[1:]
    groups = keys.key_BGLD.shape[1]
    query = queries.pad(query_RND * size**-0.5).transpose(1, 2)  # [B, N, Q, D]
    documents, _, columns, _ = query.shape
    grouped = query.reshape(documents, groups, -1, size)  # query heads of one key head lie together: [B, G, N/G * Q, D]
    score = (grouped @ keys.key_BGLD.transpose(-1, -2)).float().view(documents, heads, columns, -1)
    branch = keys.branch if window is None else keys.branch[-window:]
    own = [_own_scores(query_RND, key, queries) for key, _ in branch]
    every = torch.cat([score, *own], dim=-1)
    with torch.no_grad():  # where a score becomes infinite, the softmax has no derivative
        every[..., : score.shape[-1]] += _bias(seen)[:, None]
    weight = every.softmax(dim=-1).to(query_RND.dtype)
    context = weight[..., : score.shape[-1]].reshape(documents, groups, -1, score.shape[-1])
    mixed = queries.unpad((context @ keys.value_BGLD).view(documents, heads, columns, size).transpose(1, 2))
    for step, (_, value_RGD) in enumerate(branch):
        share_RN = queries.unpad(weight[..., score.shape[-1] + step].transpose(1, 2))
        mixed = mixed + share_RN[..., None] * value_RGD.repeat_interleave(heads // groups, dim=1)
    return mixed.flatten(1)


def _bias(seen: Tensor) -> Tensor:
    """What is added to scores so that only keys that are seen count: far faster than to fill in the others."""
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, float("-inf"))


def _own_scores(query_RND: Tensor, key_RGD: Tensor, queries: Layout) -> Tensor:
    """float32 [B, N, Q, 1]: each row's score against one key of its own branch."""
    heads, groups, size = query_RND.shape[1], key_RGD.shape[1], query_RND.shape[2]
    score_RN = (query_RND * key_RGD.repeat_interleave(heads // groups, dim=1)).float().sum(-1) * size**-0.5
    return queries.pad(score_RN).transpose(1, 2)[..., None]


@dataclass(frozen=True)
class BlockMask:
    """What the rows of all blocks see: `blocks_see` makes it once, for every layer.

    Attributes:
        bias: what is added to the scores of each stretch of tiles, float32 [c, Q, T, keys of the stretch + rows of a
            block]: 0 where a row sees a key, -infinity elsewhere.
        first: the first row of each block that asks.
    """

    bias: list[Tensor]
    first: int


BlocksSeen = BlockMask | sparse.Mask


def blocks_see(
    context: Layout, anchors: Tiles, size: int, causal: bool, window: int | None, flex: bool = False, first: int = 0
) -> BlocksSeen:
    """The engine's rules (contract 4.5), for blocks of `size` rows whose row 0 stands at its anchor's position m.

    Row r stands at q = m + r. It sees the document's keys before m, and in its block all keys or, if causal, those to
    itself. A sliding window leaves the keys with |q - k| < window, in the document and in the block.

    Args:
        first: rows before it are seen, and ask nothing.
    """
    if flex and anchors.position_R.numel():
        document_R = anchors.source_B[anchors.document_R]
        sides = (context.document_R, context.position_R), (document_R, anchors.position_R)
        return sparse.blocks_mask(*sides, size, causal, window, first)
    row_T = torch.arange(size, device=context.position_R.device)
    away_TT = row_T[first:, None] - row_T
    own = away_TT >= 0 if causal else torch.ones_like(away_TT, dtype=torch.bool)
    if window is not None:
        own = own & (away_TT.abs() < window)
    anchor_CQ11 = anchors.pad(anchors.position_R)[..., None, None]
    bias = []
    for stretch in anchors.stretches:
        before_cQ1L = anchor_CQ11[stretch.start : stretch.stop] - torch.arange(stretch.keys, device=row_T.device)
        seen = (before_cQ1L > 0).expand(-1, -1, size - first, -1)
        if window is not None:
            seen = seen & (before_cQ1L + row_T[first:, None] < window)
        seen = torch.cat((seen, own.expand(*seen.shape[:2], -1, -1)), dim=-1)
        bias.append(_bias(seen))
    return BlockMask(bias, first)


def attend_blocks(
    query_RTND: Tensor, keys: Keys, own: tuple[Tensor, Tensor], anchors: Tiles, mask: BlocksSeen
) -> Tensor:
    """Softmax attention of blocks over the context before them and over themselves.

    Args:
        query_RTND: already turned by its position, of the rows that ask.
        keys: the context of this layer.
        own: the blocks' keys (turned) and values, [R, rows of a block, G, D] each.
        anchors: layout of the blocks' anchors.

    Returns:
        [R, T, N * D] in the query's dtype; the softmax is float32.
    """
    if not isinstance(mask, BlockMask):
        key_value = keys.packed([(own[0].flatten(0, 1), own[1].flatten(0, 1))])
        return sparse.attend(query_RTND.flatten(0, 1), *key_value, mask).unflatten(0, query_RTND.shape[:2])
    blocks, rows, heads, size = query_RTND.shape
    own_key_RGTD, own_value_RGTD = (x.transpose(1, 2) for x in own)
    groups = own_key_RGTD.shape[1]
    # The query heads of one key head lie together: M = heads of a group x rows of a block.
    query_RGMD = (query_RTND * size**-0.5).transpose(1, 2).reshape(blocks, groups, heads // groups * rows, size)
    query_CQGMD = anchors.pad(query_RGMD)
    own_score_CQGMT = anchors.pad((query_RGMD @ own_key_RGTD.transpose(-1, -2)).float())
    parts = []
    for stretch, bias in zip(anchors.stretches, mask.bias, strict=True):
        tiles = slice(stretch.start, stretch.stop)
        asked = query_CQGMD[tiles].transpose(1, 2), own_score_CQGMT[tiles].transpose(1, 2)
        source_c = anchors.source_B[tiles]
        key, value = (x[:, :, : stretch.keys].index_select(0, source_c) for x in (keys.key_BGLD, keys.value_BGLD))
        parts.append(_over_context(*asked, key, value, bias))
    context_CQGMD, inside_CQGMT = (torch.cat(part) for part in zip(*parts, strict=True))
    mixed = anchors.unpad(context_CQGMD) + anchors.unpad(inside_CQGMT) @ own_value_RGTD
    return mixed.reshape(blocks, heads, rows, size).transpose(1, 2).flatten(2)


def _over_context(
    query_cGQMD: Tensor, own_score_cGQMT: Tensor, key_cGLD: Tensor, value_cGLD: Tensor, bias_cQTK: Tensor
) -> tuple[Tensor, Tensor]:
    """Some tiles: what they mix of the context [c, Q, G, M, D], and how much of each own key [c, Q, G, M, T]."""
    columns, rows = bias_cQTK.shape[1:3]
    score = (query_cGQMD.flatten(2, 3) @ key_cGLD.transpose(-1, -2)).float().unflatten(2, (columns, -1))
    both = torch.cat((score, own_score_cGQMT), dim=-1)
    with torch.no_grad():  # where a score becomes infinite, the softmax has no derivative
        both.unflatten(3, (-1, rows)).add_(bias_cQTK[:, None, :, None])
    context, inside = (
        both.softmax(dim=-1).to(query_cGQMD.dtype).split((key_cGLD.shape[2], own_score_cGQMT.shape[-1]), -1)
    )
    mixed_cGQMD = (context.flatten(2, 3) @ value_cGLD).unflatten(2, (columns, -1))
    return mixed_cGQMD.transpose(1, 2), inside.transpose(1, 2)
