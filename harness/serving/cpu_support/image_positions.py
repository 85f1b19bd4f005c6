"""Where drafts of the first runner stand beside a verifier that reads images. Called by `cpu_support.install`.

Such a verifier numbers positions on three axes (M-RoPE): all tokens of an image share one number on the first axis, so
that behind an image these numbers run behind the count of tokens. vLLM 0.32.0's first model runner hands a draft that
first axis, and takes it for the place in the key-value cache as well: behind an image, later draft steps and whole
blocks then overwrite the context and read what an earlier step left behind. Without an image both counts are the same.
Its second runner, the usual one on CUDA, gives drafts the count of tokens, for the rotation and for the cache. So does
our training, and with this the first runner.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def token_positions(query_start_B: Tensor, length_B: Tensor) -> Tensor:
    """How many tokens of its request stand before each token of a step, int64 [N].

    Args:
        query_start_B: first token of each request in the step, and the number of all (one entry more than requests).
        length_B: tokens of each request, those of the step included.
    """
    counts_B = query_start_B.diff()
    shift_B = length_B[: len(counts_B)] - query_start_B[1:]
    return torch.arange(int(query_start_B[-1])) + shift_B.repeat_interleave(counts_B).long()


def counting_tokens(first_pass: Callable) -> Callable:
    """`first_pass` of a proposer, given the count of tokens where it would be given positions on three axes."""

    @wraps(first_pass)
    def call(self: Any, *, target_positions: Tensor, cad: Any, **inputs: Any) -> Any:
        if target_positions.dim() == 2 and not self.uses_mrope:
            position_N = token_positions(cad.query_start_loc, cad.seq_lens)
            # Without slots of its own the proposer takes the first of the axes itself.
            target_positions = position_N if self.needs_extra_input_slots else position_N[None]
        return first_pass(self, target_positions=target_positions, cad=cad, **inputs)

    return call


def _with_heirs(kind: type) -> Iterator[type]:
    yield kind
    heirs: list[type] = kind.__subclasses__()
    for heir in heirs:
        yield from _with_heirs(heir)


def repair() -> None:
    """Let the proposers of this process count tokens."""
    import vllm.v1.worker.gpu_model_runner  # noqa: F401 - knows every proposer
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    for proposer in _with_heirs(SpecDecodeBaseProposer):
        if first_pass := vars(proposer).get("set_inputs_first_pass"):
            proposer.set_inputs_first_pass = counting_tokens(first_pass)  # type: ignore[attr-defined]
