"""What a run takes, from sizes alone: pure formulas, units in the names. Called by `harness.planning`.

Tokens come from rows and mean lengths; disk from tokens and the width of a state; time from operations, bytes and what
a machine does of both in a second (`harness.machines`).
"""

from algorithms.work import Work
from harness.machines import Machine
from harness.sections.plan import VerifierSize

STATE_BYTES = 2  # bfloat16
INDEX_BYTES = 9  # token id and loss mask of a stored token
# Of a trained number: float32 master, gradient, two moments, and the bfloat16 copy that products read.
TRAINED_BYTES = 4 + 4 + 8 + 2
# Of a row of a layer in bfloat16, kept for the backward pass: about this many times its width.
KEPT_WIDTHS = 20
FRAMEWORK_BYTES = 3e9
DAY_S = 86_400.0


def state_bytes_per_token(layers: int, hidden_size: int, eight_bits: bool = False) -> float:
    """Bytes of one token's stored states; `layers` counts the last one. In 8 bits each row has a scale of 4 bytes."""
    return layers * (hidden_size + 4 if eight_bits else hidden_size * STATE_BYTES)


def store_bytes(tokens: float, layers: int, hidden_size: int, eight_bits: bool = False) -> float:
    """Bytes of a whole store: states, token ids, masks."""
    return tokens * (state_bytes_per_token(layers, hidden_size, eight_bits) + INDEX_BYTES)


def cache_bytes(size: VerifierSize, sequences: float, tokens_each: float) -> float:
    """Keys and values of `sequences` rows of `tokens_each` tokens."""
    return sequences * tokens_each * size.cache_bytes_per_token


def read_weight_bytes(size: VerifierSize, sequences: float) -> float:
    """Bytes of weights that one engine step reads: of an MoE, those of the experts that `sequences` tokens reach.

    Experts are taken as drawn evenly and independently: with share a of all weights active for one token, n tokens
    reach 1 - (1 - a)^n of them.
    """
    active = size.active / size.parameters
    return size.weight_bytes * (1 - (1 - active) ** max(sequences, 1.0))


def decode_step_s(size: VerifierSize, machine: Machine, devices: int, sequences: float, context: float) -> float:
    """Seconds of one engine step that adds a token to each of `sequences` rows of `context` tokens."""
    read = read_weight_bytes(size, sequences) + cache_bytes(size, sequences, context)
    reading = read / (devices * machine.bytes_per_s * machine.reading_share)
    return machine.step_s + reading + forward_s(size, machine, devices, sequences)


def forward_s(size: VerifierSize, machine: Machine, devices: int, tokens: float) -> float:
    """Seconds of the products of `tokens` tokens passing the verifier, 2 operations a weight."""
    return 2 * size.active * tokens / (devices * machine.flop_per_s * machine.serving_share)


def reply_s(
    size: VerifierSize, machine: Machine, devices: int, rows: float, prompt: float, reply: float, sequences: float
) -> float:
    """Seconds to write `rows` replies of `reply` tokens to prompts of `prompt` tokens, `sequences` at once."""
    together = min(sequences, rows)
    steps = rows * reply / together
    step = decode_step_s(size, machine, devices, together, prompt + reply / 2)
    return steps * step + forward_s(size, machine, devices, rows * prompt)


def write_s(machine: Machine, stored: float) -> float:
    """Seconds to bring `stored` bytes to disk."""
    return stored / machine.stored_bytes_per_s


def training_step_s(work: Work, machine: Machine, devices: int, muon: bool) -> float:
    """Seconds of one optimiser step."""
    operations = work.network_flop + work.head_flop + (work.muon_flop if muon else 0.0)
    products = operations / (machine.flop_per_s * machine.training_share)
    return (products + work.logits / machine.logits_per_s) / devices


def serving_bytes(size: VerifierSize, devices: int, sequences: float, tokens_each: float) -> float:
    """Memory of one of `devices` that serve the verifier together: its part of weights, keys and values."""
    return (size.weight_bytes + cache_bytes(size, sequences, tokens_each)) / devices + FRAMEWORK_BYTES


def training_bytes(work: Work, size: VerifierSize, rows: float, layers: int) -> float:
    """Memory of a device that trains a draft: what is trained, the verifier's two tables, rows kept for backward.

    Args:
        rows: that go through the draft's layers in a step. layers: of the draft.
    """
    tables = 2 * size.vocab_size * size.hidden_size * STATE_BYTES
    kept = rows * layers * size.hidden_size * STATE_BYTES * KEPT_WIDTHS
    return work.parameters * TRAINED_BYTES + tables + kept + FRAMEWORK_BYTES
