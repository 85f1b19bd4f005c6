"""Replies and hidden states of a toy verifier by transformers, one token at a time: what the engine must reproduce."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from harness.capture.engine import Prompt, Written
from harness.sections.data import Reply
from tests.toy import TURN_END_ID

AUX_LAYERS = [1, 3, 4]
LAYERS = 6
LAYER_IDS = [*AUX_LAYERS, LAYERS]


class Reference:
    """Greedy replies; stands in for `harness.capture.engine.Engine`."""

    def __init__(self, verifier: Path, layer_ids: list[int] = LAYER_IDS) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
        self.layer_ids, self.answered = layer_ids, []

    @torch.no_grad()
    def states(self, token_ids: list[int], layer_ids: list[int]) -> tuple[Tensor, Tensor]:
        """States [S, L, H] of the layers, the last one before the final norm, and the logits [S, V]."""
        before_norm = []
        hook = self.model.model.norm.register_forward_pre_hook(lambda _, args: before_norm.append(args[0]))
        output = self.model(torch.tensor([token_ids]), output_hidden_states=True)
        hook.remove()
        layers = [*output.hidden_states[:-1], before_norm[0]]
        if not layer_ids:
            return torch.empty(len(token_ids), 0, 0), output.logits[0]
        return torch.stack([layers[i][0] for i in layer_ids], dim=1), output.logits[0]

    def stop_recording(self) -> None:
        """As `Engine.stop_recording`."""
        self.layer_ids = []

    def write(self, prompts: Iterable[Prompt], reply: Reply, seed: int) -> Iterator[Written]:
        """As `Engine.write`, one prompt after another."""
        for prompt in prompts:
            token_ids: list[int] = []
            while len(token_ids) < reply.max_new_tokens and TURN_END_ID not in token_ids:
                states, logits = self.states(prompt.token_ids + token_ids, self.layer_ids)
                token_ids.append(int(logits[-1].argmax()))
            self.answered.append(prompt.id)
            yield Written(prompt, token_ids, "stop" if token_ids[-1] == TURN_END_ID else "length", states)


def stopped_after(count: int, write: Callable[..., Iterator[Written]]) -> Callable[..., Iterator[Written]]:
    """`write`, stopped as by Ctrl-C when `count` replies are out."""

    def stopped(*arguments: Any) -> Iterator[Written]:
        for number, written in enumerate(write(*arguments)):
            if number == count:
                raise KeyboardInterrupt
            yield written

    return stopped
