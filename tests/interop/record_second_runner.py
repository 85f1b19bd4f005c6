"""Like `record_drafts`, under vLLM's second model runner, for the drafts that its first one does not know.

Run as `python -m tests.interop.record_second_runner JOB.json`; the job and what it leaves are those of
`record_drafts`. A mask that differs from layer to layer, a candidate selector and a sequential head need this runner.
On a CPU build its kernels run where `harness.serving.cpu_support` puts them.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from harness.serving import cpu_support

cpu_support.install(second_runner=True)  # before vLLM is imported

from tests.interop import record_drafts  # noqa: E402 - sets the environment, then imports vLLM

# isort: split

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator  # noqa: E402

Recorder = record_drafts.Recorder


def read(batch: Any, aux_states: list[Tensor], sampled_B: Tensor, rejected_B: Tensor) -> list[dict[str, Tensor]]:
    """What the speculator is given for each request.

    Args:
        sampled_B: the token that verification added last.
        rejected_B: rows at the end of each request that hold rejected drafts.
    """
    starts, states_SX = batch.query_start_loc.tolist(), torch.cat(aux_states, dim=-1)
    inputs = []
    for row in range(batch.num_reqs):
        span = slice(starts[row], starts[row + 1] - int(rejected_B[row]))
        kept = {
            "positions": batch.positions[span].long(),
            "token_ids": batch.input_ids[span].long(),
            "aux_states": states_SX[span],
            "next_token": sampled_B[row : row + 1].long(),
        }
        inputs.append({name: tensor.clone() for name, tensor in kept.items()})
    return inputs


def install() -> None:
    """Wrap what all speculators of blocks share, the proposal and the run of their network; plain decoding is done."""
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # read when an engine starts
    propose, run_model = DFlashSpeculator.propose, DFlashSpeculator._run_model

    def running(self: Any, *arguments: Any, **named: Any) -> Tensor:
        states = run_model(self, *arguments, **named)
        rows = len(Recorder.current.requests) * self.num_speculative_steps
        Recorder.current.outputs.append(states[self.sample_indices[:rows]].clone())
        return states

    def proposing(self: Any, *arguments: Any, **named: Any) -> Tensor:
        if named.get("dummy_run"):
            return propose(self, *arguments, **named)
        batch, _, _, _, aux_states, _, rejected_B, last_sampled = arguments[:8]
        recorder = Recorder.current
        recorder.requests = [int(name.split("-")[0]) for name in batch.req_ids]
        recorder.outputs = []
        inputs = read(batch, aux_states, last_sampled[batch.idx_mapping].flatten(), rejected_B)
        return recorder.record(inputs, propose(self, *arguments, **named))

    DFlashSpeculator._run_model = running
    DFlashSpeculator.propose = proposing


if __name__ == "__main__":
    record_drafts.install = install
    record_drafts.main(json.loads(Path(sys.argv[1]).read_text()))
