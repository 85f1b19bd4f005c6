"""Serves drafts in a process of their own and reads back what vLLM's proposer did. Used by the tests of this folder.

Shape letters: S = positions, A = verifier states, H = width, K = draft tokens.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from harness.serving.environment import is_cpu_build

needs_cpu_build = pytest.mark.skipif(not is_cpu_build(), reason="vLLM for CUDA has no float32 attention like the CPU's")
REPOSITORY = Path(__file__).parents[2]
# The module of this folder that serves and records, by `algorithms.engine_runner`.
RECORDERS = {"any": "record_drafts", "second": "record_second_runner"}
TIMEOUT_S = 600.0  # a few seconds of work, but a busy machine imports vLLM slowly


@dataclass(frozen=True)
class Proposal:
    """One call of the proposer for one request.

    Attributes:
        token_ids_S: x_0 .. x_m, the last one just sampled.
        aux_states_SAH: the verifier's states at 0 .. m-1, as vLLM handed them over, when they were first valid.
        drafts_K: what it proposed.
        outputs_KH: what its head read at each step.
    """

    token_ids_S: Tensor
    aux_states_SAH: Tensor
    drafts_K: Tensor
    outputs_KH: Tensor


@dataclass(frozen=True)
class Served:
    """What one draft did in vLLM.

    Attributes:
        proposals: by request, in order.
        plain: greedy token ids of the verifier alone, by request.
        replies: the same with the draft.
        counters: vLLM's counters and its own view of the draft.
    """

    proposals: list[list[Proposal]]
    plain: list[list[int]]
    replies: list[list[int]]
    counters: dict[str, Any]


def _proposals(entries: dict[str, Tensor], request: int, aux_count: int) -> list[Proposal]:
    """Put the true states of all earlier calls in front of each call's own, as the drafter's cache does."""
    tokens: dict[int, int] = {}
    states: dict[int, Tensor] = {}
    found = []
    while f"{request}.{len(found)}.drafts" in entries:
        call = {name: entries[f"{request}.{len(found)}.{name}"] for name in
                ("positions", "token_ids", "aux_states", "next_token", "drafts", "outputs")}  # fmt: skip
        for position, token, state in zip(
            call["positions"].tolist(), call["token_ids"], call["aux_states"], strict=True
        ):
            tokens[position], states[position] = int(token), state
        context = range(int(call["positions"][-1]) + 1)
        found.append(
            Proposal(
                torch.tensor([*(tokens[i] for i in context), int(call["next_token"])]),
                torch.stack([states[i] for i in context]).unflatten(-1, (aux_count, -1)).float(),
                call["drafts"],
                call["outputs"].float(),
            )
        )
    return found


def serve_drafts(
    root: Path,
    verifier: str,
    prompts: list[list[int]],
    max_tokens: int,
    drafts: dict[str, int],
    forced: bool,
    recorder: str = "record_drafts",
    native: dict[str, dict[str, Any]] | None = None,
    **more: Any,
) -> dict[str, Served]:
    """Run vLLM over some drafts.

    Args:
        root: folder that holds the verifier and the drafts, both given relative to it.
        drafts: number of auxiliary states by draft folder.
        forced: see `record_drafts`.
        recorder: one of `RECORDERS`.
        native: speculative config by draft folder, for drafts that are not in the speculators format.
        more: further entries of the job, see `record_drafts`.
    """
    job = {"verifier": verifier, "prompts": prompts, "max_tokens": max_tokens, "forced": forced, "drafts": list(drafts)}
    job |= {"native": native or {}, **more}
    (root / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        [sys.executable, "-m", f"tests.interop.{recorder}", "job.json"],
        cwd=root, env=os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])},
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return {name: _read(root / name, len(prompts), count) for name, count in drafts.items()}


def _read(draft: Path, requests: int, aux_count: int) -> Served:
    entries = load_file(draft.with_name(f"{draft.name}.safetensors"))
    said = json.loads(draft.with_name(f"{draft.name}.json").read_text())
    return Served([_proposals(entries, request, aux_count) for request in range(requests)], **said)
