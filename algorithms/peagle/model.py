"""The P-EAGLE draft network (contract 4.3): EAGLE-3's, fed with masks. Module names equal the checkpoint's tensors.

Where EAGLE-3 reads its own draft and its own state, P-EAGLE reads the mask token and one learned state. Nothing of a
slot then depends on the draft before it, so all of them are computed in one pass. Called by `training` and `drafting`.

Shape letters: S = all slots of a pack, R = slots that branch, E = mask slots of all depths, A = verifier states,
H = width, V = vocabulary, D = draft vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from algorithms.attention import Keys, Layout, Seen, attend, visible
from algorithms.eagle3 import model as eagle3
from algorithms.eagle3.model import Angles, Branches
from algorithms.tables import mark_table


@dataclass(frozen=True)
class Shape(eagle3.Shape):
    """Sizes and flags of a draft.

    Attributes:
        mask_token_id: stands in for every token that is not known yet.
        own_embedding: whether the draft has an embedding of its own, or reads the verifier's.
    """

    mask_token_id: int
    own_embedding: bool


@dataclass(frozen=True)
class Depth:
    """Mask slots behind some branches: the `rows_R` of those that the depth before has."""

    rows_R: Tensor
    queries: Layout
    seen: Seen


class Layer(eagle3.Layer):
    """EAGLE-3's layer; what masks read is known beforehand, so that only attention takes one depth after the other."""

    def over_masks(
        self, state_EH: Tensor, embedding_EH: Tensor, angles: Angles, keys: Keys, depths: list[Depth],
        window: int | None,
    ) -> Tensor:  # fmt: skip
        """Residual stream of the mask slots of all depths, [E, H]; before the first layer one row stands for all."""
        return self.once_more(self._over_masks, state_EH, embedding_EH, angles, keys, depths, window)

    def _over_masks(
        self, state_EH: Tensor, embedding_EH: Tensor, angles: Angles, keys: Keys, depths: list[Depth],
        window: int | None,
    ) -> Tensor:  # fmt: skip
        residual, read = self.read(state_EH, embedding_EH)
        heads = self.self_attn.query(read, angles), *self.self_attn.key_value(read, angles)
        parts = zip(*(part.split([len(depth.rows_R) for depth in depths]) for part in heads), strict=True)
        branch: list[tuple[Tensor, Tensor]] = []
        mixed = []
        for depth, (query, *own) in zip(depths, parts, strict=True):
            branch = [(key[depth.rows_R], value[depth.rows_R]) for key, value in branch] + [(own[0], own[1])]
            mixed.append(attend(query, replace(keys, branch=branch), depth.queries, depth.seen, window))
        return self._finish(residual, torch.cat(mixed))


class Draft(eagle3.Draft):
    """EAGLE-3's parameters, the state that masks read, and the embedding where it is the draft's own.

    Args:
        shape: sizes and flags.
        embedding_VH: the embedding that it reads, or starts from.
        draft_to_target_D: target id of each draft id.
    """

    layer_class = Layer
    shape: Shape

    def __init__(self, shape: Shape, embedding_VH: Tensor, draft_to_target_D: Tensor) -> None:
        super().__init__(shape, embedding_VH, draft_to_target_D)
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, self.fc.in_features))
        if shape.own_embedding:
            self.embed_tokens = nn.Embedding.from_pretrained(embedding_VH.clone(), freeze=False)
            mark_table(self.embed_tokens.weight)

    def mask_slots(self, count: int) -> tuple[Tensor, Tensor]:
        """What masks read: (states [count, H], token ids [count])."""
        states = self.mask_hidden.view(1, len(self.shape.aux_layers), -1)
        tokens = torch.full((count,), self.shape.mask_token_id, device=states.device)
        return self.fuse(states).expand(count, -1), tokens

    def deepen(self, branches: Branches) -> None:
        """One mask slot more behind every branch."""
        self._advance(branches, *self.mask_slots(1))

    def masks(self, branches: Branches, kept: Sequence[Tensor]) -> Tensor:
        """What the head reads of the mask slots of all depths, [E, H], depth after depth.

        Args:
            branches: at depth 0. kept: of each depth from 1 on, which branches of the depth before go on, ascending.
        """
        queries, window = branches.queries, self.shape.sliding_window
        depths, positions = [], []
        for step, rows_R in enumerate(kept, 1):
            queries = queries.take(rows_R)
            depths.append(Depth(rows_R, queries, visible(branches.context, queries, step, window, self.flex)))
            positions.append(queries.position_R + step)
        angles = self.rotary.angles(torch.cat(positions))
        state, token = self.mask_slots(1)
        embedding = self._embed(token, state.dtype)
        for layer, keys in zip(self.layers, branches.keys, strict=True):
            state = layer.over_masks(state, embedding, angles, keys, depths, window)
        return self._outputs(state)[0]

    def _embed(self, token_R: Tensor, dtype: torch.dtype) -> Tensor:
        return self.embed_tokens(token_R).to(dtype) if self.shape.own_embedding else super()._embed(token_R, dtype)
