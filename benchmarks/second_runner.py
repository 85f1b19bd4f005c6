"""Time of a verify step under vLLM's second model runner on its CPU build, against the first runner, in one run.

    python -m benchmarks.second_runner [--verifier models/smollm2_135m] [--tokens 48] [--requests 8]

Untrained drafts of equal size, K = 7, compared by the time of a step, which does not depend on what is accepted. One
draft is served by both runners; the others need the second. Each part is a process of its own, as in real use, and
they run one after another, the first runner once more at the end; its two runs are averaged, so that a drift of the
machine's speed does not favour a side. `interpreter alone` is the second runner without our PyTorch kernels, for a few
steps.
Exit code 1 when a draft on the second runner is less than a third as fast as the one on the first, or replies differ.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import run_command
from harness.serving.environment import ensure_environment

SPEED_MIN = 1 / 3
K = 7
AUX_LAYERS = [2, 15, 27]
PROMPT_TOKENS = 48
DRAFTS: dict[str, dict[str, Any]] = {
    "dflash": {"block_size": K + 1},
    "dflash2": {"block_size": K + 1},
    "dspark": {"block_size": K},
}


@dataclass(frozen=True)
class Part:
    """One process: which draft, on which runner, for how much of the tokens."""

    draft: str
    second_runner: bool
    replaced: bool = True
    tokens_share: float = 1.0


PARTS = {
    "first runner": Part("dflash", False),
    "second runner": Part("dflash", True),
    "second runner, dflash2": Part("dflash2", True),
    "second runner, dspark": Part("dspark", True),
    "interpreter alone": Part("dflash", True, replaced=False, tokens_share=0.125),
}
ORDER = (*PARTS, "first runner")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.second_runner", description=__doc__.split("\n")[0])
    parser.add_argument("--verifier", type=Path, default=Path("models/smollm2_135m"))
    parser.add_argument("--tokens", type=int, default=48, help="reply tokens of a request")
    parser.add_argument("--requests", type=int, default=8, help="requests at once in the second measurement")
    parser.add_argument("--out", type=Path, help="also write the figures to this file as JSON")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def write_drafts(verifier: Path, work: Path) -> None:
    """One untrained draft of each kind, from one seed, in bfloat16."""
    import torch

    import algorithms
    from harness.checkpoint import write_checkpoint
    from harness.verifiers.weights import load_weights

    weights = load_weights(verifier)
    vocabulary = weights.config["vocab_size"]
    for name, settings in DRAFTS.items():
        torch.manual_seed(0)
        kind = algorithms.load(name)
        config = kind.Config(speculative_tokens=K, mask_token_id=vocabulary - 1, **settings)
        draft = kind.build(config, weights, torch.arange(vocabulary), AUX_LAYERS).to(torch.bfloat16)
        write_checkpoint(work / name, *kind.export(draft), str(verifier))


def _interpret() -> None:
    """Put the original kernels back."""
    from harness.serving.cpu_support.replacing import replaced

    for module, kernel, _ in replaced():
        setattr(module, kernel, getattr(module, kernel).kernel)


def run_part(arguments: argparse.Namespace, part: Part) -> dict[str, Any]:
    """Start an engine and decode greedily, one request and several: seconds of the start, milliseconds of a step."""
    from harness.serving import cpu_support

    started = time.perf_counter()
    cpu_support.install(part.second_runner)
    if not part.replaced:
        _interpret()
    import numpy
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(arguments.work / part.draft), dtype="bfloat16", max_model_len=1024, max_num_batched_tokens=2048,
        max_num_seqs=arguments.requests, kv_cache_memory_bytes=2**30, enforce_eager=True, enable_prefix_caching=False,
        enable_chunked_prefill=False, disable_log_stats=False, generation_config="vllm",
    )  # fmt: skip
    random = numpy.random.default_rng(0)
    prompts = [
        {"prompt_token_ids": random.integers(100, 20000, PROMPT_TOKENS).tolist()} for _ in range(arguments.requests)
    ]

    def counted(name: str) -> int:
        return next(int(metric.value) for metric in engine.get_metrics() if metric.name == f"vllm:spec_decode_{name}")

    def measure(requests: int, tokens: int) -> dict[str, Any]:
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        before, accepted = counted("num_drafts"), counted("num_accepted_tokens")
        began = time.perf_counter()
        done = engine.generate(prompts[:requests], sampling, use_tqdm=False)
        seconds = time.perf_counter() - began
        # Every request has a first step, which drafts nothing yet.
        steps = (counted("num_drafts") - before) / requests + 1
        return {
            "ms_per_step": 1000 * seconds / steps,
            "tokens_per_s": requests * tokens / seconds,
            "accepted": counted("num_accepted_tokens") - accepted,
            "replies": [list(reply.outputs[0].token_ids) for reply in done],
        }

    measure(min(2, arguments.requests), 4)
    start_s = time.perf_counter() - started
    tokens = max(4, round(part.tokens_share * arguments.tokens))
    return {"start_s": start_s, "one": measure(1, tokens), "several": measure(arguments.requests, tokens)}


def _in_own_process(name: str, work: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.second_runner", *sys.argv[1:], "--part", name, "--work", str(work)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    figures = json.loads((work / "result.json").read_text())
    told = "   ".join(
        f"{size}: {figures[size]['ms_per_step']:7.1f} ms/step {figures[size]['tokens_per_s']:6.1f} tokens/s"
        for size in ("one", "several")
    )
    print(f"{name:24} start {figures['start_s']:5.1f} s   {told}", flush=True)
    return figures


def _summary(parts: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """How many steps each part makes while the first runner makes one, and whether replies agree."""

    def speed(name: str, size: str) -> float:
        found = [1 / figures[size]["ms_per_step"] for part, figures in parts if part == name]
        return sum(found) / len(found)

    others = [name for name in PARTS if name != "first runner"]
    speeds = {
        name: {size: speed(name, size) / speed("first runner", size) for size in ("one", "several")} for name in others
    }
    base = parts[0][1]["several"]["replies"]
    equal = all(
        mine == theirs[: len(mine)]
        for _, figures in parts
        for mine, theirs in zip(figures["several"]["replies"], base, strict=True)
    )
    return {"speed_of_first_runner": speeds, "replies_equal": equal}


def main() -> int:
    arguments = _arguments()
    ensure_environment()
    if arguments.part:
        (arguments.work / "result.json").write_text(json.dumps(run_part(arguments, PARTS[arguments.part])))
        return 0
    work = Path(tempfile.mkdtemp(prefix="second_runner_"))
    try:
        write_drafts(arguments.verifier, work)
        parts = [(name, _in_own_process(name, work)) for name in ORDER]
    finally:
        shutil.rmtree(work)
    summary = _summary(parts)
    for name, speeds in summary["speed_of_first_runner"].items():
        print(f"{name}: {speeds['one']:.2f} (one), {speeds['several']:.2f} (several) times as fast as the first runner")
    print(f"replies equal: {summary['replies_equal']}")
    if arguments.out:
        from harness.files import write_json
        from harness.provenance import collect

        settings = {key: str(value) for key, value in vars(arguments).items()}
        provenance = collect(settings, 0, "full")
        write_json(arguments.out, {"parts": parts, **summary, "load": os.getloadavg(), "provenance": provenance})
    needed = [speeds for name, speeds in summary["speed_of_first_runner"].items() if PARTS[name].replaced]
    slow = any(value < SPEED_MIN for speeds in needed for value in speeds.values())
    return int(slow or not summary["replies_equal"])


if __name__ == "__main__":
    run_command(main)
