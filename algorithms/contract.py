"""The few callables that the rest of the project may use of an algorithm.

Shape letters: S = positions of one sequence, A = auxiliary layers, H = verifier width, V = verifier vocabulary,
D = draft vocabulary, K = draft tokens per step.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel
from torch import Tensor, nn


@dataclass(frozen=True)
class VerifierWeights:
    """What a draft takes over from its verifier.

    Attributes:
        config: the verifier's text config as a dict (config.json keys; nested wrappers already opened).
        embedding_VH: input embedding, [V, H].
        head_VH: output head, [V, H] (the embedding again where they are tied).
        final_norm_H: weight of the norm before the head, [H].
    """

    config: dict[str, Any]
    embedding_VH: Tensor
    head_VH: Tensor
    final_norm_H: Tensor


@dataclass(frozen=True)
class Pack:
    """All documents of a step. What a loss draws or counts it draws and counts here, whoever computes which part.

    Attributes:
        loss_mask_S: bool [S], true on assistant tokens.
        document_S: int64 [S], ascending document number; -1 on padding.
        own_S: bool [S], the positions that a batch holds, in the batch in the same order.
        counts: whether the batch's loss counts. Where processes outnumber documents, some only keep step.
    """

    loss_mask_S: Tensor
    document_S: Tensor
    own_S: Tensor
    counts: bool = True


@dataclass(frozen=True)
class Batch:
    """One packed row of training documents (contract section 6.0).

    Attributes:
        token_ids_S: int64 [S].
        aux_states_SAH: [S, A, H], ascending layer ids.
        last_state_SH: [S, H], residual stream after the last layer, before the final norm.
        loss_mask_S: bool [S], true on assistant tokens.
        document_S: int64 [S], ascending document number; -1 on padding.
        draw: seeds what a loss draws at random: another number in every step, the same when a killed run repeats it.
        pack: all of the step, where several processes share it; None where the batch is all of it.
    """

    token_ids_S: Tensor
    aux_states_SAH: Tensor
    last_state_SH: Tensor
    loss_mask_S: Tensor
    document_S: Tensor
    draw: int = 0
    pack: Pack | None = None

    @property
    def whole(self) -> "Batch | Pack":
        """Masks and documents of all that the step reads."""
        return self.pack or self


def renumber(index_X: Tensor, own_Y: Tensor) -> Tensor:
    """Those of the indices into Y that `own_Y` marks, as indices into the marked ones."""
    return (own_Y.cumsum(0) - 1)[index_X[own_Y[index_X]]]


@dataclass(frozen=True)
class LossOutput:
    """A training loss (scalar with gradient) and plain numbers to show.

    All are sums over the rows of the batch, divided by counts of the whole pack: the figures of its parts add up.
    """

    loss: Tensor
    metrics: dict[str, float] = field(default_factory=dict)


class Propose(Protocol):
    """Greedy drafts of the engine at every position, from true states only (contract 4.1, 4.2)."""

    def __call__(
        self, draft: nn.Module, token_ids_S: Tensor, aux_states_SAH: Tensor, num_draft_tokens: int, first: int = 0
    ) -> Tensor:
        """Row t - first of the int64 [S-1-first, K] result: the K drafts once x_{t+1} was sampled, x_{t+2}..x_{t+1+K}.

        Target ids. Row t uses states 0..t and tokens 0..t+1 only. Rows before `first` are not wanted and not computed:
        nothing is drafted inside a prompt.
        """


@dataclass(frozen=True)
class FormatRule:
    """One trap of an algorithm's checkpoints.

    Attributes:
        name: words joined by `-`, shown to the user.
        check: (config.json content, tensors) -> (what was found, what to do) for every fault.
    """

    name: str
    check: Callable[[dict[str, Any], dict[str, Tensor]], Iterable[tuple[str, str]]]


@dataclass(frozen=True)
class CheckpointFormat:
    """What the server reads of an algorithm's checkpoints (contract sections 1.3, 1.4 and 2).

    Attributes:
        Keys: closed model of the top-level config.json keys of this algorithm. A key whose absence the server fills
            with something of its own has no default here.
        required_tensors: config.json content -> shape by name of every tensor without which drafts are garbage.
        optional_tensors: config.json content -> shape by name of the tensors that may be left out.
        rules: traps beyond keys, names and shapes.
    """

    Keys: type[BaseModel]
    required_tensors: Callable[[dict[str, Any]], dict[str, tuple[int, ...]]]
    optional_tensors: Callable[[dict[str, Any]], dict[str, tuple[int, ...]]]
    rules: tuple[FormatRule, ...] = ()


def no_suspects(*_: Any) -> tuple["Suspect", ...]:
    """What an algorithm without traps of its own would give."""
    return ()


@dataclass(frozen=True)
class Suspect:
    """Another way to read a checkpoint: how a server, an exporter or a trainer may have taken it.

    Attributes:
        trap: words joined by `-`, shown to the user; several suspects may belong to one trap.
        change: what is read otherwise, in words.
        config, tensors: the checkpoint as it is read then.
    """

    trap: str
    change: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Algorithm:
    """What `algorithms.load(name)` gives.

    Attributes:
        name: folder name, also `speculators_model_type` in the checkpoint.
        Config: typed settings in a reproduction.
        build: (settings, verifier, draft_to_target_D, capture layer ids) -> untrained draft.
        objective: (settings, verifier, draft) -> the loss of one packed row, a function of a `Batch`.
        propose: see `Propose`.
        export: draft -> (config.json content without `speculators_config.verifier`, tensors), contract 1 and 2.
        restore: (config.json content, tensors, verifier) -> draft; the inverse of `export`.
        aux_layers: config.json content -> ascending ids of the verifier states that the draft reads.
        engine_method: the name that vLLM reports for this algorithm (contract 1.4).
        format: see `CheckpointFormat`.
        suspects: (config.json content, tensors, verifier, special token ids) -> other readings of a checkpoint, in the
            order in which they are tried when acceptance is not what it should be.
        new_tensors: parts of the names of tensors that start anew when a related algorithm's draft lacks them.
    """

    name: str
    Config: type[BaseModel]
    build: Callable[..., nn.Module]
    objective: Callable[[Any, VerifierWeights, Any], Callable[[Batch], LossOutput]]
    propose: Propose
    export: Callable[[nn.Module], tuple[dict[str, Any], dict[str, Tensor]]]
    restore: Callable[[dict[str, Any], dict[str, Tensor], VerifierWeights], nn.Module]
    aux_layers: Callable[[dict[str, Any]], list[int]]
    engine_method: str
    format: CheckpointFormat | None = None
    suspects: Callable[..., Iterable[Suspect]] = no_suspects
    new_tensors: tuple[str, ...] = ()
