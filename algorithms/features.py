"""What a draft learns from: the verifier's own next-token distribution, rebuilt from its stored last state.

Shape letters: S = positions, H = verifier width, D = draft vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from algorithms.contract import VerifierWeights


@dataclass(frozen=True)
class Teacher:
    """The verifier's final norm and the head rows of the draft vocabulary (contract 6.0).

    Attributes:
        head_DH: rows of the verifier's output head, ascending target ids.
        norm_H, epsilon: the verifier's final norm, x * w (not the Gemma form).
    """

    head_DH: Tensor
    norm_H: Tensor
    epsilon: float

    @classmethod
    def of(cls, verifier: VerifierWeights, draft_to_target_D: Tensor) -> "Teacher":
        """Take the head rows of the draft vocabulary from the verifier, to the device of that vocabulary."""
        device = draft_to_target_D.device
        head_DH = verifier.head_VH[draft_to_target_D.to(verifier.head_VH.device)].contiguous()
        return cls(head_DH.to(device), verifier.final_norm_H.to(device), verifier.config["rms_norm_eps"])

    @torch.no_grad()
    def log_probabilities(self, last_state_SH: Tensor) -> Tensor:
        """float32 [S, D]: log softmax over the draft vocabulary, renormalised over the draft's tokens."""
        normed = F.rms_norm(last_state_SH.float(), self.norm_H.shape, self.norm_H.float(), self.epsilon)
        logits = normed.to(self.head_DH.dtype) @ self.head_DH.T
        return logits.float().log_softmax(dim=-1)
