"""What upstream speculators 0.9.0 is told so that it trains a draft of the same size as ours.

Called by `acceptance_against_upstream`. The sizes come from our own settings in the reproduction. Upstream keeps its
own loss and position weights, optimiser (Muon, 1e-3), schedule (linear) and norms.
"""

from collections.abc import Callable
from typing import Any

WIDE_WINDOW = 2048  # upstream's own; wider than any text here, so it only tells that a block is causal

# Upstream's flash attention has no backward pass on a CPU, and its fused losses are Triton kernels.
ON_CPU = {
    "--draft-attn-impl": "sdpa",
    "--loss-implementation": "eager",
    "--on-missing": "raise",
    "--num-workers": 0,
}


def _attention(knobs: Any, causal_block: bool) -> dict[str, Any]:
    """The layer types: upstream makes every layer a sliding one unless told otherwise, and a sliding block causal."""
    if knobs.sliding_window is None and not causal_block:
        return {"--full-attention-indices": list(range(knobs.layers))}
    return {"--sliding-window": knobs.sliding_window or WIDE_WINDOW}


def _eagle3(knobs: Any) -> dict[str, Any]:
    return _attention(knobs, False) | {"--draft-arch": knobs.architecture, "--ttt-steps": knobs.ttt_steps}


def _peagle(knobs: Any) -> dict[str, Any]:
    sampling = {"--down-sample-ratio": knobs.sample_ratio, "--down-sample-ratio-min": knobs.sample_ratio_min}
    depths = {"--num-depths": knobs.num_depths, "--max-anchors": knobs.max_anchors} | sampling
    return _attention(knobs, False) | {"--draft-arch": knobs.architecture} | depths


def _blocks(knobs: Any, causal: bool) -> dict[str, Any]:
    """A bidirectional block says so even with full attention: the server would make it causal (contract 4.5)."""
    block = {"--block-size": knobs.block_size, "--max-anchors": knobs.max_anchors}
    return _attention(knobs, causal) | block | ({} if causal else {"--sliding-window-non-causal": True})


def _dflash(knobs: Any) -> dict[str, Any]:
    return _blocks(knobs, knobs.causal)


def _dflash2(knobs: Any) -> dict[str, Any]:
    parts = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    return _blocks(knobs, knobs.causal) | {f"--{part.replace('_', '-')}": getattr(knobs, part) for part in parts}


def _dspark(knobs: Any) -> dict[str, Any]:
    heads = {
        "--markov-rank": knobs.markov_rank,
        "--sample-from-anchor": knobs.sample_from_anchor,
        "--enable-confidence-head": knobs.confidence_head,
        "--confidence-head-with-markov": knobs.confidence_head_with_markov,
    }
    return _blocks(knobs, knobs.blocks_are_causal) | heads


OPTIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "eagle3": _eagle3,
    "peagle": _peagle,
    "dflash": _dflash,
    "dflash2": _dflash2,
    "dspark": _dspark,
}


def upstream_options(algorithm: str, knobs: Any) -> dict[str, Any]:
    """Options of `speculators train` for a draft of the sizes in `knobs`, our validated settings.

    Raises:
        ValueError: upstream has no option for a size: it takes the MLP's width from the verifier.
    """
    if knobs.intermediate_size is not None:
        raise ValueError("intermediate_size: upstream takes the verifier's. Fix: leave it out")
    options = {"--speculator-type": algorithm, "--num-layers": knobs.layers} | ON_CPU | OPTIONS[algorithm](knobs)
    if knobs.draft_vocab_size is not None:
        options["--draft-vocab-size"] = knobs.draft_vocab_size
    if hasattr(knobs, "mask_token_id"):
        options["--mask-token-id"] = knobs.mask_token_id
    return options


def as_arguments(options: dict[str, Any]) -> list[str]:
    """The options as words of a command line: true is the bare option, false its `--no-` form."""
    words: list[str] = []
    for name, value in options.items():
        if isinstance(value, bool):
            words.append(name if value else name.replace("--", "--no-", 1))
        else:
            words += [name, *map(str, value if isinstance(value, list) else [value])]
    return words
