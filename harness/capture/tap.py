"""Reads the verifier's hidden states inside vLLM's own forward pass while it writes its replies.

`harness.capture.engine` names `StateTap` as vLLM's `worker_extension_cls` and calls its methods by `collective_rpc`.

Why not vLLM's `extract_hidden_states`: it poses as speculative decoding, so every decode step runs each sequence on
two positions, of which one is thrown away, and its file connector copies with CUDA streams. The tap is a forward hook
on the model, with the interface that vLLM itself uses for drafting (`set_aux_hidden_state_layers`): no position is
computed twice, nothing goes through a file, and it is the same on CPU and CUDA. Every row is kept with the token and
the position it was computed for and is handed out only if these are exactly the tokens of the reply.

Shape letters: N = positions in one engine step, S = positions of one reply, L = captured layers, H = verifier width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class StatesDiffer(RuntimeError):
    """The recorded rows are not those of the reply; the message names the request and the first position."""


@dataclass
class _Rows:
    """States and tokens of one running request, by position; `token_ids_S` is -1 where nothing was computed."""

    states_SLH: Tensor
    token_ids_S: np.ndarray

    def write(self, start: int, states_NLH: Tensor, token_ids_N: np.ndarray) -> None:
        stop = start + len(token_ids_N)
        self.states_SLH[start:stop] = states_NLH
        self.token_ids_S[start:stop] = token_ids_N
        self.token_ids_S[stop:] = -1  # a preempted request starts over: what it had behind here is void


class StateTap:
    """Methods that vLLM adds to its worker. All names start with `tap_`, as vLLM refuses names the worker has."""

    model_runner: Any  # the worker's own
    rank: int  # likewise: of several workers, which hold the model together, each has the whole states

    def tap_install(self, layer_ids: list[int], max_positions: int) -> None:
        """Start recording.

        Args:
            layer_ids: ascending ids; id i is the residual stream after i layers, id n the one before the final norm.
            max_positions: the longest request, in positions.

        Raises:
            TypeError: the verifier's class in vLLM cannot give the states of single layers.
        """
        model = self.model_runner.model
        if not hasattr(model, "set_aux_hidden_state_layers"):
            raise TypeError(f"vLLM's {type(model).__name__} does not hand out hidden states of single layers")
        if self.rank:
            return  # the first worker records
        model.set_aux_hidden_state_layers(tuple(layer_ids))
        self.tap_max_positions = max_positions
        self.tap_rows: dict[str, _Rows] = {}
        self.tap_spare: list[_Rows] = []
        self.tap_hook = model.register_forward_hook(self.tap_record, with_kwargs=True)

    def tap_remove(self) -> None:
        """Stop recording; the model gives what it would give without the tap."""
        if self.rank:
            return
        self.tap_hook.remove()
        self.model_runner.model.set_aux_hidden_state_layers(())
        self.tap_rows.clear()
        self.tap_spare.clear()

    def tap_record(
        self, model: nn.Module, args: tuple, kwargs: dict[str, Any], output: tuple[Tensor, list[Tensor]]
    ) -> Tensor:
        """Forward hook: keep the states of this step and give the engine the output it would have had."""
        hidden, layers = output
        states_NLH = torch.stack(layers, dim=1).cpu()
        batch = self.model_runner.input_batch
        starts = self.model_runner.query_start_loc.np
        # A verifier that reads images is given embeddings instead of tokens; the runner has both.
        given = kwargs["input_ids"]
        token_ids_N = (self.model_runner.input_ids.gpu if given is None else given).cpu().numpy()
        for i, request in enumerate(batch.req_ids):
            rows = slice(int(starts[i]), int(starts[i + 1]))
            kept = self.tap_rows.get(request)
            if kept is None:
                kept = self.tap_rows[request] = self.tap_empty(states_NLH)
            kept.write(int(batch.num_computed_tokens_cpu[i]), states_NLH[rows], token_ids_N[rows])
        return hidden

    def tap_empty(self, like_NLH: Tensor) -> _Rows:
        """Room for one request, used again from one that was taken where there is any."""
        if self.tap_spare:
            return self.tap_spare.pop()
        shape = (self.tap_max_positions, *like_NLH.shape[1:])
        return _Rows(torch.empty(shape, dtype=like_NLH.dtype), np.full(self.tap_max_positions, -1))

    def tap_take(self, request: str, token_ids: list[int]) -> Tensor | None:
        """Hand out the states of a finished request and forget it.

        Args:
            request: the engine's own id of the request.
            token_ids: prompt and reply without its final token, S of them.

        Returns:
            [S, L, H] on the CPU, in the verifier's dtype; None from a worker that does not record.

        Raises:
            StatesDiffer: a row is missing or was computed for another token.
        """
        if self.rank:
            return None
        kept = self.tap_rows.pop(request, None)
        if kept is None:
            raise StatesDiffer(f"request {request}: no states were recorded for {len(token_ids)} tokens")
        differs_S = kept.token_ids_S[: len(token_ids)] != np.array(token_ids)
        if differs_S.any():
            at = int(differs_S.argmax())
            raise StatesDiffer(
                f"request {request}: position {at} has the state of token {kept.token_ids_S[at]}, not {token_ids[at]}"
            )
        states_SLH = kept.states_SLH[: len(token_ids)].clone()
        kept.token_ids_S[:] = -1
        self.tap_spare.append(kept)
        return states_SLH
