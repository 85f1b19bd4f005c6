"""How much one optimiser step of a draft computes: parameters and floating-point operations, free of PyTorch.

The `config.py` of each algorithm fills in its own rows and sizes (`DraftConfig.work`); called by the planning step. A
product of a row with a matrix counts 2 operations a weight, its backward pass 4: 2 by the row, 2 by the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

FORWARD, BY_ROW, BY_WEIGHT = 2, 2, 2
# Muon makes a matrix orthogonal with this many Newton-Schulz steps, each of two products and one square, as published:
# of a matrix that is much wider than high the training makes fewer.
NEWTON_SCHULZ_STEPS = 5


@dataclass(frozen=True)
class Sizes:
    """Widths that a draft takes over from its verifier: of states, MLP, queries (heads x size), keys, vocabulary."""

    hidden: int
    intermediate: int
    query: int
    key: int
    vocabulary: int
    aux_layers: int


@dataclass(frozen=True)
class Pack:
    """What one step reads, in tokens: all, those of replies, those of a mean document."""

    tokens: float
    reply_tokens: float
    document_tokens: float


@dataclass(frozen=True)
class Matrix:
    """A trained matrix and the rows that go through it in one step; `reads_input`: what it reads is not trained."""

    inputs: int
    outputs: int
    rows: float
    reads_input: bool = False

    @property
    def weights(self) -> int:
        """Number of weights."""
        return self.inputs * self.outputs

    @property
    def flop(self) -> float:
        """Operations of forward and backward pass."""
        return self.weights * self.rows * (FORWARD + BY_WEIGHT + (0 if self.reads_input else BY_ROW))

    @property
    def muon_flop(self) -> float:
        """Operations of one Muon update."""
        short, long = sorted((self.inputs, self.outputs))
        return NEWTON_SCHULZ_STEPS * (4 * short**2 * long + 2 * short**3)


@dataclass(frozen=True)
class Work:
    """One step of one draft.

    Attributes:
        parameters: trained numbers, vocabulary tables among them.
        network_flop: the draft's layers, attention included, forward and backward.
        head_flop: output head, forward and backward, and the verifier's distributions.
        logits: numbers that pass through a softmax.
        muon_flop: one update of all matrices by Muon.
    """

    parameters: float
    network_flop: float
    head_flop: float
    logits: float
    muon_flop: float

    @classmethod
    def of(
        cls, matrices: Sequence[Matrix], attention: tuple[float, float, int], head: "Head", tables: float = 0.0
    ) -> "Work":
        """Add up the parts.

        Args:
            matrices: every trained matrix but the head.
            attention: (query rows, tokens that each sees on average, width of the queries) over all layers.
            tables: trained numbers in tables of token vectors.
        """
        rows, seen, width = attention
        # Scores and mixing, 2 operations each; the backward pass costs twice the forward pass.
        attended = 3 * 2 * FORWARD * rows * seen * width
        trained = sum(matrix.weights for matrix in matrices) + tables + (head.weights if head.trained else 0)
        return cls(
            trained,
            sum(matrix.flop for matrix in matrices) + attended,
            head.flop,
            (head.rows + head.targets) * head.vocabulary,
            sum(matrix.muon_flop for matrix in matrices),
        )


@dataclass(frozen=True)
class Head:
    """The output head: rows that it scores, distinct verifier distributions that they are held against."""

    hidden: int
    vocabulary: int
    rows: float
    targets: float
    trained: bool

    @property
    def weights(self) -> int:
        """Number of weights."""
        return self.hidden * self.vocabulary

    @property
    def flop(self) -> float:
        """Operations of both heads, the draft's and the verifier's."""
        of_row = FORWARD + BY_ROW + (BY_WEIGHT if self.trained else 0)
        return self.weights * (self.rows * of_row + self.targets * FORWARD)


def layer_matrices(sizes: Sizes, intermediate: int, inputs: int, key_rows: float, query_rows: float) -> list[Matrix]:
    """One decoder layer: projections of `inputs` numbers, output, gated MLP.

    Args:
        key_rows: rows that give keys and values. query_rows: rows that go through all the rest.
    """
    return [
        Matrix(inputs, sizes.query, query_rows),
        Matrix(inputs, sizes.key, key_rows),
        Matrix(inputs, sizes.key, key_rows),
        Matrix(sizes.query, sizes.hidden, query_rows),
        *[Matrix(sizes.hidden, intermediate, query_rows)] * 3,
    ]
