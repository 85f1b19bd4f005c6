"""Serves drafts with vLLM in this process and writes down what its proposer read and computed.

Run by the tests of this folder as `python -m tests.interop.record_drafts JOB.json` in the folder that the drafts'
relative verifier names start from. The job: {"verifier": folder, "prompts": [[ids]], "max_tokens": n, "forced": bool,
"drafts": [folder, ...], "native": {folder: speculative config}, "images": [[data URI]], "as_shipped": [folder]}. A
draft in `native` is not in the speculators format: the verifier is served with that config. Prompts hold every token of
their images. A draft in `as_shipped` is served without our repair of positions behind images. Beside each draft it
leaves `<draft>.json` (outputs, counters) and `<draft>.safetensors` (one entry per proposal and request). `forced`
replaces 0..K drafts of each proposal by the tokens that plain decoding gave, after they were recorded, so that every
number of acceptances happens.
"""

import functools
import gc
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tests.interop.one_process import ENVIRONMENT

os.environ |= ENVIRONMENT

import torch
from safetensors.torch import save_file
from torch import Tensor
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from harness.data.images import decoded, narrowed
from harness.serving import cpu_support
from harness.serving.cpu_support import image_positions

MAX_MODEL_LEN = 256
MORE_TOKENS = 16  # of plain decoding, so that the last proposals can be forced too


@dataclass
class Recorder:
    """What one engine's proposer did; the `current` one listens."""

    current: ClassVar["Recorder"]

    continuations: list[list[int]] | None
    entries: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    requests: list[int] = field(default_factory=list)
    # What the head read, one tensor a call: a row of each request, or all K rows of each at once (parallel drafting).
    outputs: list[Tensor] = field(default_factory=list)

    def read(self, given: dict[str, Any]) -> list[dict[str, Tensor]]:
        """What the proposer is given for each request; copied, because it works in place."""
        self.outputs = []
        starts = given["common_attn_metadata"].query_start_loc_cpu.tolist()
        rejected = given["num_rejected_tokens_gpu"]
        inputs = []
        position_N = given["target_positions"]
        if position_N.dim() == 2:  # three axes, of a verifier that reads images
            given_lengths = given["common_attn_metadata"].seq_lens
            position_N = image_positions.token_positions(torch.tensor(starts), given_lengths)
        for row in range(len(self.requests)):
            span = slice(starts[row], starts[row + 1] - (0 if rejected is None else int(rejected[row])))
            kept = {
                "positions": position_N[span],
                "token_ids": given["target_token_ids"][span].long(),
                "aux_states": given["target_hidden_states"][span],
                "next_token": given["next_token_ids"][row : row + 1].long(),
            }
            inputs.append({name: tensor.clone() for name, tensor in kept.items()})
        return inputs

    def record(self, inputs: list[dict[str, Tensor]], drafts_BK: Tensor) -> Tensor:
        """Keep one proposal; returns the drafts to verify."""
        verified_BK = drafts_BK.clone()
        outputs_BKH = torch.cat([output.unflatten(0, (len(self.requests), -1)) for output in self.outputs], dim=1)
        for row, (request, kept) in enumerate(zip(self.requests, inputs, strict=True)):
            number = self.counts.get(request, 0)
            self.counts[request] = number + 1
            kept["drafts"] = drafts_BK[row].long().clone()
            kept["outputs"] = outputs_BKH[row]
            self.entries |= {f"{request}.{number}.{name}": tensor for name, tensor in kept.items()}
            if self.continuations:
                last = int(kept["positions"][-1])
                true = self.continuations[request][last + 2 :][: number % (drafts_BK.shape[1] + 1)]
                verified_BK[row, : len(true)] = torch.tensor(true, dtype=drafts_BK.dtype)
        return verified_BK


def install() -> None:
    """Wrap the runner (request ids), the proposer (inputs, drafts) and its sampling (what the head reads)."""
    cpu_support.install(second_runner=False)  # as our server does
    of_runner, propose = GPUModelRunner.propose_draft_token_ids, SpecDecodeBaseProposer.propose
    sample = SpecDecodeBaseProposer._greedy_sample

    def runner(self: Any, *arguments: Any, **named: Any) -> Any:
        Recorder.current.requests = [int(name.split("-")[0]) for name in self.input_batch.req_ids]
        return of_runner(self, *arguments, **named)

    def proposing(self: Any, *arguments: Any, **given: Any) -> Tensor:
        inputs = Recorder.current.read(given)
        return Recorder.current.record(inputs, propose(self, *arguments, **given))

    def sampling(self: Any, hidden_states: Tensor) -> Tensor:
        Recorder.current.outputs.append(hidden_states.clone())
        return sample(self, hidden_states)

    GPUModelRunner.propose_draft_token_ids = runner
    SpecDecodeBaseProposer.propose = proposing
    SpecDecodeBaseProposer._greedy_sample = sampling


def start_engines_faster() -> None:
    """vLLM looks for its kernels in every module at every engine's start: once a process is enough."""
    register = CpuPlatform.register_triton_kernel_overrides
    CpuPlatform.register_triton_kernel_overrides = staticmethod(functools.cache(register))


def asked(engine: LLM, prompts: list[list[int]], images: list[list[str]]) -> list[dict[str, Any]]:
    """Prompts as the engine takes them: it widens those with images itself."""
    if not any(images):
        return [{"prompt_token_ids": prompt} for prompt in prompts]
    token = engine.llm_engine.vllm_config.model_config.hf_config.image_token_id
    return [
        {"prompt_token_ids": narrowed(prompt, token)}
        | ({"multi_modal_data": {"image": [decoded(url) for url in urls]}} if urls else {})
        for prompt, urls in zip(prompts, images, strict=True)
    ]


def generate(
    model: str, prompts: list[list[int]], max_tokens: int, images: list[list[str]] | None = None, **more: Any
) -> tuple[list[list[int]], dict[str, Any]]:
    """Greedy token ids of each prompt, and the engine's counters of speculative decoding."""
    engine = LLM(
        model=model,
        dtype="float32",
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_MODEL_LEN,  # no prompt is cut in chunks
        max_num_seqs=len(prompts),
        num_gpu_blocks_override=64,  # of CPU memory here
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        **more,
    )
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
    done = engine.generate(asked(engine, prompts, images or []), sampling, use_tqdm=False)
    counters = {m.name: getattr(m, "value", None) for m in engine.get_metrics() if "spec_decode" in m.name}
    settings = engine.llm_engine.vllm_config.speculative_config
    if settings is not None:
        draft = settings.draft_model_config
        counters |= {"method": settings.method, "num_speculative_tokens": settings.num_speculative_tokens}
        counters |= {
            "architectures": draft.hf_config.architectures,
            "verifier": engine.llm_engine.vllm_config.model_config.model,
        }
    del engine
    gc.collect()
    cleanup_dist_env_and_memory()
    return [list(reply.outputs[0].token_ids) for reply in done], counters


def main(job: dict[str, Any]) -> None:
    """Plain decoding first, then every draft."""
    prompts, images = job["prompts"], job.get("images")
    start_engines_faster()
    plain, _ = generate(job["verifier"], prompts, job["max_tokens"] + MORE_TOKENS, images)
    install()
    mended = SpecDecodeBaseProposer.set_inputs_first_pass
    for draft in job["drafts"]:
        shipped = draft in job.get("as_shipped", [])
        SpecDecodeBaseProposer.set_inputs_first_pass = mended.__wrapped__ if shipped else mended
        whole = [prompt + reply for prompt, reply in zip(prompts, plain, strict=True)]
        Recorder.current = Recorder(whole if job["forced"] else None)
        native = job.get("native", {}).get(draft)
        served, more = (draft, {}) if native is None else (job["verifier"], {"speculative_config": native})
        replies, counters = generate(served, prompts, job["max_tokens"], images, **more)
        save_file(
            {name: tensor.contiguous() for name, tensor in Recorder.current.entries.items()}, f"{draft}.safetensors"
        )
        said = {"plain": [reply[: job["max_tokens"]] for reply in plain], "replies": replies, "counters": counters}
        Path(f"{draft}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
