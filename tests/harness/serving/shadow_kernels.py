"""Runs every replaced kernel beside the interpreted original, on the inputs of real engines, and writes what differed.

Run by `test_second_runner` as `python -m tests.harness.serving.shadow_kernels` in a folder that holds `jobs.json`:
name to [model folder, more settings of the engine]. Each launch is done twice from the same memory, block tables
included, which kernels are given by address. Leaves `shadow.json`: "kernels", kernel to [launches, launches left to the
interpreter, first difference]; "replies" by job; "context_norm", largest errors of the norm of context keys.
"""

import json
import os
from pathlib import Path
from typing import Any

from harness.serving import cpu_support

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
cpu_support.install(second_runner=True)

# isort: split

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.v1.worker.gpu.block_table import BlockTables  # noqa: E402

from harness.serving.cpu_support.replacing import Replacement  # noqa: E402

# Read by settings that the replacement leaves to the interpreter, so it does not write them.
UNUSED = {"target_rejected_logsumexp_ptr", "draft_rejected_logsumexp_ptr"}
TOLERANCE = 2e-5  # float32, other order of summation
found: dict[str, list[Any]] = {}
tables: list[BlockTables] = []


def memory(named: dict[str, Any]) -> dict[str, Tensor]:
    """Every tensor that a launch can write: its arguments, and the block tables behind addresses."""
    known = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    for number, table in enumerate(tables):
        shared = [*(each.gpu for each in table.block_tables), *table.input_block_tables]
        known |= {f"table {number}.{index}": tensor for index, tensor in enumerate(shared)}
    return known


def difference(name: str, wanted: Tensor, got: Tensor) -> str | None:
    if wanted.is_floating_point():
        same = torch.allclose(wanted, got, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    else:
        same = torch.equal(wanted, got)
    return None if same else f"{name}: {wanted.flatten()[:8].tolist()} and {got.flatten()[:8].tolist()}"


def beside(self: Replacement, grid: tuple[int, ...], *arguments: Any, **named: Any) -> None:
    """Launch the original, keep what it wrote, put the memory back, launch the replacement, compare."""
    kernel = found.setdefault(self.kernel.__name__, [0, 0, None])
    known = memory(dict(zip(self.kernel.arg_names, arguments, strict=False)) | named)
    before = {name: tensor.clone() for name, tensor in known.items()}
    self.kernel[grid](*arguments, **named)
    wanted = {name: tensor.clone() for name, tensor in known.items()}
    for name, tensor in known.items():
        tensor.copy_(before[name])
    kernel[0] += 1
    if self.function(grid, *arguments, **named) is NotImplemented:
        kernel[1] += 1
        self.kernel[grid](*arguments, **named)
        return
    told = (difference(name, wanted[name], tensor) for name, tensor in known.items() if name not in UNUSED)
    kernel[2] = kernel[2] or next(filter(None, told), None)


def prompts() -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(5)
    return [{"prompt_token_ids": torch.randint(0, 250, (n,), generator=generator).tolist()} for n in (9, 40, 70, 23, 5)]


def requests(tokens: int, drafts: bool) -> list[SamplingParams]:
    """One way of sampling a request: all of them are in one batch."""
    ways: list[dict[str, Any]] = [
        {"temperature": 0.0, "logprobs": 2},
        {"temperature": 0.7, "seed": 3, "top_p": 0.9, "logprobs": 2},
        {"temperature": 1.0, "seed": -4, "top_k": 20},
        {"temperature": 1.5, "seed": 2**40 + 5, "repetition_penalty": 1.2}
        | ({} if drafts else {"min_p": 0.02}),  # refused where something drafts
        {"temperature": 0.0, "frequency_penalty": 0.3, "presence_penalty": 0.4},
    ]
    return [SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False, **way) for way in ways]


def run(model: str, more: dict[str, Any]) -> list[list[int]]:
    engine = LLM(
        model=model, dtype="float32", max_model_len=128, max_num_batched_tokens=64, max_num_seqs=8,
        kv_cache_memory_bytes=2**26, enforce_eager=True, enable_prefix_caching=False, **more,
    )  # fmt: skip
    drafts = engine.llm_engine.vllm_config.speculative_config is not None
    replies = engine.generate(prompts(), requests(12, drafts), use_tqdm=False)
    return [list(reply.outputs[0].token_ids) for reply in replies]


def context_norm_errors() -> dict[str, float]:
    """The norm that the draft models of this process use, and vLLM's own operation, against the formula."""
    from types import SimpleNamespace

    from vllm import _custom_ops as ops
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

    generator = torch.Generator().manual_seed(1)
    k_LSKD, weight_LD = torch.randn(3, 5, 2, 16, generator=generator), torch.rand(3, 16, generator=generator)
    wanted = k_LSKD * (k_LSKD.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight_LD[:, None, None]
    model = SimpleNamespace(_k_norm_weights=weight_LD, _rms_norm_eps=1e-6)
    fused = torch.empty_like(k_LSKD)
    ops.rms_norm(fused, k_LSKD, weight_LD, 1e-6)
    found = {"repaired": DFlashQwen3Model._normalize_context_k(model, k_LSKD), "fused": fused}
    return {name: float((normed - wanted).abs().max()) for name, normed in found.items()}


def main() -> None:
    made = BlockTables.__init__

    def making(self: BlockTables, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        tables[:] = [self]

    BlockTables.__init__ = making
    Replacement._launch = beside
    replies = {name: run(*job) for name, job in json.loads(Path("jobs.json").read_text()).items()}
    result = {"kernels": found, "replies": replies, "context_norm": context_norm_errors()}
    Path("shadow.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
