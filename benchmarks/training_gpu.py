"""Training speed, memory and share of the device's speed on synthetic states, at the sizes of any reproduction.

    python -m benchmarks.training_gpu [--reproduction qwen3_8b] [--device cuda] [--algorithms NAME ...] [--steps 8]

For a machine with a GPU: no verifier, no capture and no upstream are needed. Tables, head and states are random numbers
of the verifier's sizes in bfloat16; documents have unequal lengths about the reproduction's mean; drafts, packs, loss,
optimiser, compilation and checkpointing are the reproduction's. The share is what the draft has to compute
(`DraftConfig.work`) over the time of a step, against the speed of one large product measured in the same run: 1 cannot
be reached.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import algorithms
from algorithms import speed
from algorithms.contract import Batch, LossOutput, VerifierWeights
from algorithms.settings import DraftConfig
from algorithms.work import Pack, Sizes
from harness.config import Reproduction, load_reproduction, validate
from harness.errors import UserError, run_command
from harness.files import write_json
from harness.memory import peak_memory_bytes
from harness.sections.plan import VerifierSize
from harness.sections.training import Training
from harness.training.optimizers import make_optimizers

WARM_STEPS = 2
TABLE_STD = 0.02
PRODUCT = {"cuda": 8192, "cpu": 1024}  # rows of the square product that measures the device


@dataclass(frozen=True)
class Setting:
    """What is trained: verifier, pack and optimisation of a reproduction."""

    verifier: VerifierSize
    aux_layers: list[int]
    pack: Pack
    training: Training

    @classmethod
    def of(cls, run: Reproduction) -> "Setting":
        """The reproduction's.

        Raises:
            UserError: it has no section `plan`, which holds the verifier's sizes.
        """
        if run.plan is None:
            raise UserError(f"--reproduction = {run.name}: has no plan. Fix: use one that has")
        reply = min(run.plan.reply_tokens, run.data.reply.max_new_tokens)
        document, tokens = run.plan.prompt_tokens + reply, float(run.training.tokens_per_step)
        pack = Pack(tokens, tokens * reply / document, document)
        return cls(run.plan.verifier, run.capture.aux_layers, pack, run.training)

    @property
    def sizes(self) -> Sizes:
        """As the count of operations wants them."""
        v = self.verifier
        heads, groups = v.attention_heads * v.head_dim, v.kv_heads * v.head_dim
        return Sizes(v.hidden_size, v.intermediate_size, heads, groups, v.vocab_size, len(self.aux_layers))


def random_weights(size: VerifierSize, device: torch.device) -> VerifierWeights:
    """Tables and norm of a verifier of this size."""
    config = {
        "hidden_size": size.hidden_size, "intermediate_size": size.intermediate_size, "head_dim": size.head_dim,
        "num_attention_heads": size.attention_heads, "num_key_value_heads": size.kv_heads,
        "num_hidden_layers": size.layers, "vocab_size": size.vocab_size, "max_position_embeddings": 1 << 15,
        "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }  # fmt: skip
    shape = (size.vocab_size, size.hidden_size)
    tables = [torch.randn(*shape, device=device, dtype=torch.bfloat16) * TABLE_STD for _ in range(2)]
    return VerifierWeights(config, *tables, torch.ones(size.hidden_size, device=device, dtype=torch.bfloat16))


def random_batch(setting: Setting, device: torch.device, draw: int) -> Batch:
    """Documents of half to one and a half times the mean length, as many as fill a pack; replies at their ends."""
    random = torch.Generator().manual_seed(draw)
    share = setting.pack.reply_tokens / setting.pack.tokens
    lengths: list[int] = []
    while sum(lengths) < setting.pack.tokens:
        longest = int(setting.pack.tokens) - sum(lengths)
        drawn = setting.pack.document_tokens * (0.5 + torch.rand(1, generator=random).item())
        lengths.append(min(max(2, round(drawn)), longest))
    tokens, width = sum(lengths), setting.verifier.hidden_size
    states = torch.randn(tokens, len(setting.aux_layers) + 1, width, device=device, dtype=torch.bfloat16)
    mask = torch.cat([torch.arange(n) >= n - max(1, round(n * share)) for n in lengths])
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    ids = torch.randint(0, setting.verifier.vocab_size, (tokens,), generator=random)
    return Batch(ids.to(device), states[:, :-1], states[:, -1], mask.to(device), document.to(device), draw)


def _settle(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _timed(work: Callable[[], Any], device: torch.device) -> float:
    _settle(device)
    started = time.perf_counter()
    work()
    _settle(device)
    return time.perf_counter() - started


def product_flop_per_s(device: torch.device) -> float:
    """Operations per second of one large product in bfloat16, the best of a few."""
    rows = PRODUCT.get(device.type, PRODUCT["cuda"])
    a, b = (torch.randn(rows, rows, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * rows**3 / min(_timed(lambda: a @ b, device) for _ in range(5))


def _step(draft: nn.Module, objective: Callable[[Batch], LossOutput], optimizers: list[Any], batch: Batch) -> float:
    with torch.autocast(batch.token_ids_S.device.type, dtype=torch.bfloat16):
        loss = objective(batch).loss
    loss.backward()
    nn.utils.clip_grad_norm_([p for p in draft.parameters() if p.requires_grad], 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def measure(name: str, knobs: DraftConfig, setting: Setting, device: torch.device, steps: int) -> dict[str, Any]:
    """Train a draft for a few steps; the time of a step is the median without the first ones."""
    torch.manual_seed(setting.training.seed)
    verifier, algorithm = random_weights(setting.verifier, device), algorithms.load(name)
    kept = torch.arange(knobs.draft_vocab_size or setting.verifier.vocab_size, device=device)
    with device:
        draft = algorithm.build(knobs, verifier, kept, setting.aux_layers).to(device)
    if setting.training.gradient_checkpointing:
        speed.recompute(draft)
    if setting.training.compile and device.type != "cpu":
        speed.compile_parts(draft)
    objective = algorithm.objective(knobs, verifier, draft)
    optimizers = make_optimizers(draft, setting.training)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    losses: list[float] = []
    batches = [random_batch(setting, device, draw) for draw in range(2)]
    seconds = [
        _timed(lambda batch=batch: losses.append(_step(draft, objective, optimizers, batch)), device)
        for batch in (batches * (WARM_STEPS + steps))[: WARM_STEPS + steps]
    ]
    work, each = knobs.work(setting.sizes, setting.pack), median(seconds[WARM_STEPS:])
    flop = work.network_flop + work.head_flop + (work.muon_flop if setting.training.optimizer == "muon" else 0.0)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory_bytes()
    return {
        "seconds_per_step": each,
        "tokens_per_s": len(batches[0].token_ids_S) / each,
        "peak_memory_bytes": peak,
        "flop_per_s": flop / each,
        "parameters": work.parameters,
        "last_loss": losses[-1],
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--reproduction", default="qwen3_8b", help="its sizes and settings are used")
    parser.add_argument("--algorithms", nargs="+", choices=algorithms.NAMES, default=list(algorithms.NAMES))
    parser.add_argument("--device", type=torch.device, default="cuda", help="cuda, or cpu to try it at a small size")
    parser.add_argument("--steps", type=int, default=8, help="measured optimiser steps")
    parser.add_argument("--out", type=Path, help="also write the figures to this file as JSON")
    return parser.parse_args()


def main() -> None:
    """Measure, print a table."""
    arguments = _arguments()
    device: torch.device = arguments.device
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("--device = cuda: this machine has none. Fix: use cpu, with a small --reproduction")
    run = load_reproduction(arguments.reproduction)
    setting, best = Setting.of(run), product_flop_per_s(device)
    print(f"one large product: {best / 1e12:.2f} TFLOP/s")
    print(f"{'algorithm':10}{'tokens/s':>10}{'ms/step':>9}{'peak GiB':>10}{'TFLOP/s':>9}{'share':>7}")
    found = {}
    for name in [name for name in arguments.algorithms if name in run.algorithms]:
        knobs = validate(algorithms.config_class(name), run.algorithms[name], f"settings of {name}")
        each = found[name] = measure(name, knobs, setting, device, arguments.steps)
        each["share_of_product"] = each["flop_per_s"] / best
        print(f"{name:10}{each['tokens_per_s']:10.0f}{1e3 * each['seconds_per_step']:9.0f}"
              f"{each['peak_memory_bytes'] / 2**30:10.1f}{each['flop_per_s'] / 1e12:9.2f}"
              f"{each['share_of_product']:7.2f}", flush=True)  # fmt: skip
    if arguments.out:
        from harness.provenance import collect

        settings = {key: str(value) for key, value in vars(arguments).items()}
        provenance = collect(settings, setting.training.seed, "full")
        write_json(arguments.out, {"algorithms": found, "product_flop_per_s": best, "provenance": provenance})


if __name__ == "__main__":
    run_command(main)
