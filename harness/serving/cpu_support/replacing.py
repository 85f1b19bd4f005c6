"""PyTorch functions in place of the second runner's Triton kernels. Called by `cpu_support.install`.

A replacement has the kernel's parameters, after the launch grid. It returns NotImplemented for settings that it does
not cover (they are rare); then the kernel itself runs, in the interpreter.
"""

import pkgutil
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from harness.serving.cpu_support.kernels import batch, drafting, sampling, verification

RUNNER = "vllm.v1.worker.gpu"
# Kernels of the runner itself, by module.
KERNELS: dict[str, dict[str, Callable]] = {
    "input_batch": {
        "_prepare_prefill_inputs_kernel": batch.prepare_prefill_inputs,
        "_prepare_pos_seq_lens_kernel": batch.prepare_positions,
        "_combine_sampled_and_draft_tokens_kernel": batch.combine_sampled_and_draft_tokens,
        "_get_num_sampled_and_rejected_kernel": batch.count_sampled_and_rejected,
        "_post_update_kernel": batch.post_update,
        "_expand_idx_mapping_kernel": batch.expand_index_mapping,
    },
    "block_table": {
        "_gather_block_tables_kernel": batch.gather_block_tables,
        "_compute_slot_mappings_kernel": batch.compute_slot_mappings,
    },
    "buffer_utils": {"_apply_write_kernel": batch.apply_writes},
    "sample.gumbel": {
        "_temperature_kernel": sampling.apply_temperature,
        "_gumbel_sample_kernel": sampling.gumbel_sample,
    },
    "sample.min_p": {"_min_p_kernel": sampling.apply_min_p},
    "sample.penalties": {
        "_penalties_kernel": sampling.apply_penalties,
        "_bincount_kernel": sampling.count_tokens,
    },
    "sample.logprob": {
        "_topk_log_softmax_kernel": sampling.log_probabilities,
        "_ranks_kernel": sampling.ranks,
    },
    "spec_decode.rejection_sampler": {
        "_flatten_sampled_kernel": verification.flatten_sampled,
        "_gather_draft_sampled_kernel": verification.gather_draft_sampled,
    },
    "spec_decode.rejection_sampler_utils": {
        "_compute_local_logits_stats_kernel": verification.local_statistics,
        "_rejection_kernel": verification.reject,
        "_resample_kernel": verification.resample,
        "_insert_resampled_kernel": verification.insert_resampled,
    },
}
# Kernels of drafting, which vLLM keeps in a folder per kind of draft.
SPECULATOR_KERNELS: dict[str, Callable] = {
    "_prepare_dflash_inputs_kernel": drafting.prepare_block_inputs,
    "_selector_walk_kernel": drafting.walk_candidates,
}


class Replacement:
    """Stands where a kernel stood and is launched like it."""

    def __init__(self, kernel: Any, function: Callable) -> None:
        self.kernel, self.function = kernel, function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **named: Any) -> None:
        if self.function(grid, *arguments, **named) is NotImplemented:
            self.kernel[grid](*arguments, **named)


def _speculators() -> list[ModuleType]:
    root = import_module(f"{RUNNER}.spec_decode")
    folders = [found.name for found in pkgutil.iter_modules(root.__path__) if found.ispkg]
    return [import_module(f"{root.__name__}.{folder}.speculator") for folder in folders]


def replaced() -> Iterator[tuple[ModuleType, str, Callable]]:
    """Module, kernel name and function of every kernel that has a replacement (imports the runner)."""
    for name, kernels in KERNELS.items():
        module = import_module(f"{RUNNER}.{name}")
        yield from ((module, kernel, function) for kernel, function in kernels.items())
    for module in _speculators():
        own = [kernel for kernel in SPECULATOR_KERNELS if kernel in vars(module)]
        yield from ((module, kernel, SPECULATOR_KERNELS[kernel]) for kernel in own)


def replace_kernels() -> int:
    """Put the replacements in place; each kernel is launched by its own module alone. Returns their number."""
    found = list(replaced())
    for module, kernel, function in found:
        setattr(module, kernel, Replacement(getattr(module, kernel), function))
    # Top-k and top-p have a PyTorch form of vLLM's own; the interpreter cannot run the Triton form.
    sampler: Any = import_module("vllm.v1.sample.ops.topk_topp_sampler")
    sampler.HAS_TRITON = False
    return len(found)
