"""A training that goes on from a checkpoint (`algorithms.<name>.init_from`): of the same algorithm, or of a relative.

Called by `python -m harness.training`. A relative shares the network and lacks a part, which then starts anew.
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from algorithms.contract import Algorithm
from algorithms.exporting import TABLES, draft_to_target
from harness.checkpoint.reading import read_checkpoint
from harness.errors import UserError

# What names the checkpoint and its place among others, or how much of a block it is served with: not the network.
UNCOMPARED = ("speculators_model_type", "speculators_config", "transformer_layer_config", "architectures", "block_size")
EMBEDDING = "embed_tokens.weight"


class Start:
    """A checkpoint to go on from.

    Args:
        folder: of the checkpoint.
        vocabulary: of the verifier.

    Attributes:
        draft_to_target_D: its draft vocabulary.
        sha256: of its tensors.
    """

    def __init__(self, folder: str, vocabulary: int) -> None:
        self.where = f"algorithms: init_from = {folder}"
        self.content, self.tensors = read_checkpoint(Path(folder))
        self.sha256 = hashlib.sha256(save(self.tensors)).hexdigest()
        self.draft_to_target_D: Tensor = draft_to_target(self.tensors, vocabulary)

    def give(self, algorithm: Algorithm, draft: nn.Module) -> list[str]:
        """Copy the weights into `draft`; returns the names of its tensors that start anew.

        Raises:
            UserError: the two networks differ, or the checkpoint has tensors that the draft has no place for.
        """
        self._compare(algorithm.export(draft)[0])
        ours = draft.state_dict()
        theirs = {name: tensor for name, tensor in self.tensors.items() if name not in TABLES or name in ours}
        if foreign := sorted(theirs.keys() - ours.keys()):
            raise UserError(f"{self.where}: has {foreign[0]}, this draft has not. Fix: go on from a related draft")
        frozen = {name for name, parameter in draft.named_parameters() if not parameter.requires_grad}
        anew = sorted(ours.keys() - theirs.keys() - frozen)
        if lost := [name for name in anew if not any(part in name for part in algorithm.new_tensors)]:
            raise UserError(f"{self.where}: lacks {lost[0]}. Fix: go on from a related draft")
        if EMBEDDING in self.tensors and EMBEDDING not in ours:
            self._same_embedding(draft)
        draft.load_state_dict(theirs, strict=False)
        return anew

    def _same_embedding(self, draft: Any) -> None:
        """A draft that reads the verifier's embedding cannot go on from one that learned another."""
        theirs, verifiers = self.tensors[EMBEDDING], draft.embedding_VH
        if theirs.shape != verifiers.shape or not torch.equal(theirs.to(verifiers.dtype), verifiers):
            told = f"{EMBEDDING} is not the verifier's"
            raise UserError(f"{self.where}: {told}. Fix: train an embedding, or go on from a draft without its own")

    def _compare(self, ours: dict[str, Any]) -> None:
        """Every key that both describe must be the same: a flag that differs gives the same tensors another meaning."""
        layers = (self.content["transformer_layer_config"], ours["transformer_layer_config"])
        tops = ({key: value for key, value in each.items() if key not in UNCOMPARED} for each in (self.content, ours))
        for theirs, own in (layers, tuple(tops)):
            for key in sorted(theirs.keys() & own.keys()):
                if theirs[key] != own[key]:
                    told = f"{key} = {theirs[key]!r} there and {own[key]!r} here"
                    raise UserError(f"{self.where}: {told}. Fix: set both the same")
