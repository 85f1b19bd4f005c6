"""The DSpark draft network (contract 4.7): DFlash's block stream, and two heads over its output.

A step drafts K tokens from one block. Where the anchor drafts too, the block has K rows and a row drafts the token
after its own position; otherwise it has one row more, the anchor's is left aside, and a row drafts the token at its own
position. Either way draft k, from 0, stands at m + 1 + k and follows the token at m + k: past `unused_rows` everything
is counted in drafts. Called by `training` and `drafting`.

Shape letters: R = drafts (of any number of blocks), H = width, r = rank of the Markov head, V = vocabulary,
D = draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from algorithms.dflash import model as dflash
from algorithms.dspark.heads import ConfidenceHead, MarkovHead


@dataclass(frozen=True)
class Shape(dflash.Shape):
    """Sizes and flags of a draft.

    Attributes:
        sample_from_anchor: the anchor's row drafts as well.
        markov_rank: width of the table of token pairs.
        confidence_head, confidence_head_with_markov: whether there is one, and whether it reads the previous token.
    """

    sample_from_anchor: bool
    markov_rank: int
    confidence_head: bool
    confidence_head_with_markov: bool

    @property
    def unused_rows(self) -> int:
        """Rows at the start of a block that draft nothing: 0 or 1."""
        return 0 if self.sample_from_anchor else 1


class Draft(dflash.Backbone):
    """DFlash's parameters and those of the heads."""

    shape: Shape

    def __init__(self, shape: Shape, embedding_VH: Tensor, draft_to_target_D: Tensor) -> None:
        super().__init__(shape, embedding_VH, draft_to_target_D)
        rank, layer = shape.markov_rank, shape.layer
        self.markov_head = MarkovHead(layer["vocab_size"], shape.draft_vocab_size, rank)
        self.confidence_head: ConfidenceHead | None = None
        if shape.confidence_head:
            read = rank if shape.confidence_head_with_markov else 0
            self.confidence_head = ConfidenceHead(layer["hidden_size"], read)

    def logits(self, output_RH: Tensor, embedding_Rr: Tensor) -> Tensor:
        """[R, D]: what the row says and what the token before says, in `markov_head.embed`'s words."""
        return self.lm_head(output_RH) + self.markov_head.bias(embedding_Rr)

    def confidence(self, output_RH: Tensor, embedding_Rr: Tensor) -> Tensor:
        """Guessed chance of acceptance, float32 [R]; ones without a confidence head."""
        if self.confidence_head is None:
            return torch.ones(output_RH.shape[0], device=output_RH.device)
        return self.confidence_head(output_RH, embedding_Rr).sigmoid()
