"""Chooses among each position's candidates by the token chosen before it (contract 4.6).

The rows of a block are computed side by side, so none knows what the others say. The selector adds to a candidate's
logit how well it follows the token before it, and a greedy walk from the anchor picks one candidate a position.
Called by `training`, where the token before is the true one, and by `drafting`, where it is the one just chosen.

Shape letters: R = blocks (or rows), K = drafted positions, C = candidates, H = width, V = vocabulary, r = rank.
"""

import torch
from torch import Tensor, nn

from algorithms.tables import mark_table


class CandidateSelector(nn.Module):
    """A product of three vectors: one of the token before, one of the row's output, one of the candidate.

    Starts as no correction at all: candidates' vectors are zero. Those of tokens before are one, so that a token that
    was never met in training counts as an average one.

    Args:
        vocabulary: V, the verifier's: candidates are never passed through a reduced vocabulary.
        width: H. rank: r, length of the three vectors.
    """

    def __init__(self, vocabulary: int, width: int, rank: int) -> None:
        super().__init__()
        self.predecessor_codebook = mark_table(nn.Parameter(torch.ones(vocabulary, rank)))
        self.successor_codebook = mark_table(nn.Parameter(torch.zeros(vocabulary, rank)))
        self.hidden_projection = nn.Linear(width, rank, bias=False)

    def corrections(self, read_Rr: Tensor, before_R: Tensor, candidate_RC: Tensor) -> Tensor:
        """What is added to each candidate's logit, float32 [R, C].

        Args:
            read_Rr: `hidden_projection` of the rows' outputs.
            before_R: token before each row, int64 [R].
        """
        wanted_Rr = self.predecessor_codebook[before_R].float() * read_Rr.float()
        return torch.einsum("rcd,rd->rc", self.successor_codebook[candidate_RC].float(), wanted_Rr)


def greedy_walk(
    selector: CandidateSelector, output_RKH: Tensor, anchor_R: Tensor, logit_RKC: Tensor, candidate_RKC: Tensor
) -> Tensor:
    """The candidate that scores best after the one chosen before it, position by position; int64 [R, K].

    Args:
        output_RKH: what the head read at the drafted positions.
        anchor_R: token before the first of them.
        logit_RKC: logits of the candidates, float32.
        candidate_RKC: token ids.
    """
    read_RKr = selector.hidden_projection(output_RKH)
    chosen = [anchor_R]
    for position in range(candidate_RKC.shape[1]):
        candidate_RC = candidate_RKC[:, position]
        score_RC = logit_RKC[:, position] + selector.corrections(read_RKr[:, position], chosen[-1], candidate_RC)
        chosen.append(candidate_RC.gather(1, score_RC.argmax(dim=-1, keepdim=True)).squeeze(1))
    return torch.stack(chosen[1:], dim=1)
