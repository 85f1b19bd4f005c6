"""The P-EAGLE draft network (contract 4.3): EAGLE-3's, fed with masks. Module names equal the checkpoint's tensors.

Where EAGLE-3 reads its own draft and its own state, P-EAGLE reads the mask token and one learned state. Nothing of a
slot then depends on the draft before it, so all of them are computed in one pass. Called by `training` and `drafting`.

Shape letters: S = all slots of a pack, R = slots that branch, A = verifier states, H = width, V = vocabulary,
D = draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from algorithms.eagle3 import model as eagle3
from algorithms.eagle3.model import Branches
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


class Draft(eagle3.Draft):
    """EAGLE-3's parameters, the state that masks read, and the embedding where it is the draft's own.

    Args:
        shape: sizes and flags.
        embedding_VH: the embedding that it reads, or starts from.
        draft_to_target_D: target id of each draft id.
    """

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

    def _embed(self, token_R: Tensor, dtype: torch.dtype) -> Tensor:
        return self.embed_tokens(token_R).to(dtype) if self.shape.own_embedding else super()._embed(token_R, dtype)
