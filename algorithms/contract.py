"""The few callables that the rest of the project may use of an algorithm.

Shape letters: S = positions of one sequence, A = auxiliary layers, H = verifier width, V = verifier vocabulary,
D = draft vocabulary, K = draft tokens per step.
"""

from collections.abc import Callable
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
class Batch:
    """One packed row of training documents (contract section 6.0).

    Attributes:
        token_ids_S: int64 [S].
        aux_states_SAH: [S, A, H], ascending layer ids.
        last_state_SH: [S, H], residual stream after the last layer, before the final norm.
        loss_mask_S: bool [S], true on assistant tokens.
        document_S: int64 [S], ascending document number; -1 on padding.
    """

    token_ids_S: Tensor
    aux_states_SAH: Tensor
    last_state_SH: Tensor
    loss_mask_S: Tensor
    document_S: Tensor


@dataclass(frozen=True)
class LossOutput:
    """A training loss (scalar with gradient) and plain numbers to show, each with the count it was averaged over."""

    loss: Tensor
    metrics: dict[str, float] = field(default_factory=dict)


class Propose(Protocol):
    """Greedy drafts of the engine at every position, from true states only (contract 4.1, 4.2)."""

    def __call__(self, draft: nn.Module, token_ids_S: Tensor, aux_states_SAH: Tensor, num_draft_tokens: int) -> Tensor:
        """Row t of the int64 [S-1, K] result: the K drafts made once x_{t+1} was sampled, guesses of x_{t+2}..x_{t+1+K}.

        Target ids. Row t uses states 0..t and tokens 0..t+1 only.
        """


@dataclass(frozen=True)
class Algorithm:
    """What `algorithms.load(name)` gives.

    Attributes:
        name: folder name, also `speculators_model_type` in the checkpoint.
        Config: typed settings in a reproduction.
        build: (settings, verifier, draft_to_target_D, capture layer ids) -> untrained draft.
        loss: (draft, batch) -> loss over one packed row.
        propose: see `Propose`.
        export: draft -> (config.json content without `speculators_config.verifier`, tensors), contract sections 1 and 2.
        restore: (config.json content, tensors, verifier) -> draft; the inverse of `export`.
    """

    name: str
    Config: type[BaseModel]
    build: Callable[..., nn.Module]
    loss: Callable[[nn.Module, Batch], LossOutput]
    propose: Propose
    export: Callable[[nn.Module], tuple[dict[str, Any], dict[str, Tensor]]]
    restore: Callable[[dict[str, Any], dict[str, Tensor], VerifierWeights], nn.Module]
