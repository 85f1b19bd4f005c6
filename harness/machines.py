"""Machines that a plan can be told for: what their makers state, and the shares of it that were reached.

Called by `harness.costs` and the section `plan`. Peaks are those of the data sheets (dense bfloat16, memory of one
device). Shares are ours: see `measured` of each. Units stand in the names.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """One kind of device, or a CPU as a whole.

    Attributes:
        memory_bytes: of one device. flop_per_s, bytes_per_s: peak of matrix products and of reading that memory.
        training_share, serving_share: of the peak products that training and the engine reach.
        reading_share: of the peak reading that the engine reaches while it decodes.
        logits_per_s: numbers that training takes through softmax and loss, beside the products.
        step_s: what an engine step takes beside reading and products. start_s: until an engine is ready.
        stored_bytes_per_s: hidden states to disk.
        measured: where the shares come from, and when.
    """

    gpu: bool
    memory_bytes: float
    flop_per_s: float
    bytes_per_s: float
    training_share: float
    serving_share: float
    reading_share: float
    logits_per_s: float
    step_s: float
    start_s: float
    stored_bytes_per_s: float
    measured: str


def _gpu(memory_gb: float, teraflop_per_s: float, terabytes_per_s: float) -> Machine:
    return Machine(
        gpu=True,
        memory_bytes=memory_gb * 1e9,
        flop_per_s=teraflop_per_s * 1e12,
        bytes_per_s=terabytes_per_s * 1e12,
        training_share=0.15,
        serving_share=0.4,
        reading_share=0.6,
        logits_per_s=terabytes_per_s * 1e12 / 40,  # some ten passes over float32 numbers
        step_s=0.01,
        start_s=180.0,
        stored_bytes_per_s=6e8,
        measured="not measured by us: shares fitted to GPU hours that others state (published.yaml), within a factor 3",
    )


# Fitted to one draft's training, the capture and the base's latency of the main job; the other trainings and the
# measurements are predicted by it (tests/harness/test_planning.py).
CPU = Machine(
    gpu=False,
    memory_bytes=24 * 2**30,
    flop_per_s=320e9,
    bytes_per_s=20e9,
    training_share=0.78,
    serving_share=1.0,
    reading_share=1.0,
    logits_per_s=1e9,
    step_s=0.0095,
    start_s=20.0,
    stored_bytes_per_s=5e8,
    measured="2 cores of AMD EPYC, 24 GiB, vLLM 0.32.0+cpu, torch 2.13: what the main job reached, 2026-11-29",
)

KNOWN = {
    "cpu": CPU,
    "a100": _gpu(80, 312, 2.0),
    "h100": _gpu(80, 989, 3.35),
    "h200": _gpu(141, 989, 4.8),
    "b200": _gpu(180, 2250, 7.7),
}
