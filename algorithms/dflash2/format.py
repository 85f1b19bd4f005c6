"""What the server reads of a DFlash2 checkpoint beside what it reads of a DFlash one (contract 1.4, 2.3, 9).

Named by `ALGORITHM.format`; used by the exporter's check and by the linter.
"""

from typing import Any

from pydantic import Field
from torch import Tensor

from algorithms.contract import CheckpointFormat, FormatRule
from algorithms.dflash import format as dflash
from algorithms.exporting import speculative_tokens
from algorithms.shapes import Shapes, is_reduced


class Keys(dflash.Keys):
    """Keys of DFlash2. Those without a default mean something else to the server when left out."""

    conv_kernel_size: int = Field(ge=1, description="write the taps of the convolutions: the server stops without them")
    conv_group_size: int = Field(ge=1, description="write the channels of a group: the server stops without them")
    selector_rank: int = Field(ge=1, description="write the rank of the selector: the server stops without it")
    selector_top_k: int = Field(ge=1, description="write the number of candidates: the server stops without it")


def required_tensors(config: dict[str, Any]) -> Shapes:
    """Shape by name of every tensor that the server would otherwise leave uninitialised, in silence."""
    layer, rank = config["transformer_layer_config"], config["selector_rank"]
    width, taps, vocabulary = layer["hidden_size"], config["conv_kernel_size"], layer["vocab_size"]
    shapes: Shapes = {
        "candidate_selector.predecessor_codebook": (vocabulary, rank),
        "candidate_selector.successor_codebook": (vocabulary, rank),
        "candidate_selector.hidden_projection.weight": (rank, width),
    }
    for index in range(layer["num_hidden_layers"]):
        for name in ("attention_conv", "mlp_conv"):
            shapes[f"layers.{index}.{name}.base_kernel"] = (2, taps, width)
            kernels = 2 * taps * (width // config["conv_group_size"])
            shapes[f"layers.{index}.{name}.kernel_projection.weight"] = (kernels, width)
    return dflash.required_tensors(config) | shapes


def _groups(config: dict[str, Any], _: dict[str, Tensor]) -> dflash.Said:
    """Groups of channels fill the width."""
    size, width = config["conv_group_size"], config["transformer_layer_config"]["hidden_size"]
    if width % size:
        yield f"conv_group_size {size} of width {width}: the server stops", "train with a divisor of the width"


def _taps(config: dict[str, Any], _: dict[str, Tensor]) -> dflash.Said:
    """A convolution sees no more rows than a block has."""
    taps, rows = config["conv_kernel_size"], speculative_tokens(config) + 1
    if taps > rows:
        yield f"conv_kernel_size {taps} over blocks of {rows} rows", f"train with {rows} taps or less"


def _candidates(config: dict[str, Any], _: dict[str, Tensor]) -> dflash.Said:
    """There are not more candidates than tokens."""
    count, vocabulary = config["selector_top_k"], config["transformer_layer_config"]["vocab_size"]
    if count > vocabulary:
        yield f"selector_top_k {count} of {vocabulary} tokens", "write the trained number of candidates"


def _vocabulary(config: dict[str, Any], _: dict[str, Tensor]) -> dflash.Said:
    """Candidates are never mapped to the verifier's ids."""
    if is_reduced(config):
        found = f"draft_vocab_size {config['draft_vocab_size']}: the server takes draft ids for the verifier's"
        yield found, "train over the whole vocabulary"


FORMAT = CheckpointFormat(
    Keys=Keys,
    required_tensors=required_tensors,
    optional_tensors=dflash.optional_tensors,
    rules=(
        *dflash.FORMAT.rules,
        FormatRule("conv-groups", _groups),
        FormatRule("conv-taps", _taps),
        FormatRule("candidate-count", _candidates),
        FormatRule("full-vocabulary", _vocabulary),
    ),
)
