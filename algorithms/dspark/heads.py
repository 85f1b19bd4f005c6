"""The two heads that DSpark puts on a block draft (contract 4.7). Module names equal the checkpoint's tensor names.

The Markov head adds to the logits of a drafted token what the token before it says: a low-rank table of token pairs.
The confidence head guesses how likely the verifier is to accept each drafted token. Called by `model`.

Shape letters: R = rows, H = width, r = rank of the Markov head, V = verifier vocabulary, D = draft vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from algorithms.tables import mark_table

TABLE_STD = 0.01


class MarkovHead(nn.Module):
    """bias[next] = w2[next] . w1[previous]; `previous` is a target id, `next` a draft id.

    It starts as no bias at all: w2 is zero, w1 drawn at random, so that both learn from the second step on.
    """

    def __init__(self, vocabulary: int, draft_vocabulary: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocabulary, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocabulary, bias=False)
        mark_table(self.markov_w1.weight)
        mark_table(self.markov_w2.weight)
        nn.init.normal_(self.markov_w1.weight, std=TABLE_STD)
        nn.init.zeros_(self.markov_w2.weight)

    def embed(self, previous_R: Tensor) -> Tensor:
        """[R] target ids -> [R, r]."""
        return self.markov_w1(previous_R)

    def bias(self, embedding_Rr: Tensor) -> Tensor:
        """[R, r] -> logits to add, [R, D]."""
        return self.markov_w2(embedding_Rr)


class ConfidenceHead(nn.Module):
    """One linear row over the draft's output, and over the Markov embedding where `rank` is not 0; float32.

    It starts at even chances: the weights are zero.
    """

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width + rank, 1)
        self.with_markov = rank > 0
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)

    def forward(self, output_RH: Tensor, embedding_Rr: Tensor) -> Tensor:
        """[R, H] and [R, r] -> log-odds of acceptance, float32 [R], whatever the compute dtype."""
        read = torch.cat((output_RH.float(), embedding_Rr.float()), dim=-1) if self.with_markov else output_RH.float()
        with torch.autocast(read.device.type, enabled=False):
            return F.linear(read, self.proj.weight.float(), self.proj.bias.float()).squeeze(-1)
