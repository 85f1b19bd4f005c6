"""Layouts of other projects that become DSpark checkpoints.

Facts: deepseek-ai/DeepSpec `modeling/dspark` (every row drafts the token after its own position, bidirectional blocks,
full attention, embedding and head copied from the verifier, keys at the top level of the config); sgl-project/SpecForge
`modeling/draft/dspark.py` (the same network, keys in `dflash_config`, `is_causal`). DeepSpec's DFlash is this network
with `markov_rank` 0: the server's DFlash drafts the token at a row's own position, so it cannot be served as that, but
as a DSpark whose Markov head adds nothing.
"""

from typing import Any

import torch

from algorithms.dflash.foreign import block_content, either, refuse_other_networks
from algorithms.dspark.export import causal_by_kind
from algorithms.dspark.format import FORMAT
from algorithms.foreign import Case, Fields, ForeignError, ForeignLayout, architecture, layout_of_class

SILENT = "zeros: the source has no Markov head, and the server none without one"


def _heads(case: Case, section: Fields) -> dict[str, Any]:
    """Keys of the two heads, tables of zeros where the source has no Markov head."""
    rank = either(case, section, "markov_rank")
    if rank is None:
        raise ForeignError("config.json: markov_rank: missing. Fix: write the trained value there, 0 for none")
    kind = str(either(case, section, "markov_head_type", "vanilla")).lower()
    if rank and kind != "vanilla":
        said = f"config.json: markov_head_type = {kind!r}: the server computes no other head than vanilla"
        raise ForeignError(f"{said}. Fix: convert another draft")
    confidence = bool(either(case, section, "enable_confidence_head", False))
    with_markov = bool(either(case, section, "confidence_head_with_markov", False))
    section.get("confidence_head_alpha")
    return {
        "markov_rank": rank or 1,
        "markov_head_type": "vanilla",
        "enable_confidence_head": confidence,
        "confidence_head_with_markov": confidence and with_markov,
    }


def _translate(case: Case, section: Fields) -> dict[str, Any]:
    content, window = block_content(case, section, "dspark", 0)
    layer, heads = content["transformer_layer_config"], _heads(case, section)
    if not either(case, section, "markov_rank"):
        for name, rows in (("w1", layer["vocab_size"]), ("w2", content["draft_vocab_size"])):
            case.ledger.make(f"markov_head.markov_{name}.weight", torch.zeros(rows, 1), SILENT)
    if window.causal != causal_by_kind(layer):
        layer["dflash_config"] = {"causal": window.causal}
    content |= heads | {"sample_from_anchor": True, "sliding_window_non_causal": not window.causal}
    case.ledger.carry(FORMAT.required_tensors(content), FORMAT.optional_tensors(content))
    return content


def _deepspec(case: Case) -> dict[str, Any]:
    return _translate(case, case.fields.part("dspark_config"))


def _specforge(case: Case) -> dict[str, Any]:
    section = case.fields.part("dflash_config")
    refuse_other_networks(section, "dspark")
    return _translate(case, section)


def _deepspec_with(markov: bool) -> Any:
    def recognise(config: dict[str, Any], names: Any) -> bool:
        return architecture(config) == "Qwen3DSparkModel" and bool(config.get("markov_rank")) == markov

    return recognise


LAYOUTS = (
    ForeignLayout(
        name="deepspec-dspark",
        project="DeepSpec DSpark",
        becomes="dspark",
        recognised_by="`Qwen3DSparkModel`, `markov_rank` above 0",
        recognise=_deepspec_with(markov=True),
        translate=_deepspec,
    ),
    ForeignLayout(
        name="deepspec-dflash",
        project="DeepSpec DFlash",
        becomes="dspark",
        recognised_by="`Qwen3DSparkModel`, `markov_rank` 0",
        recognise=_deepspec_with(markov=False),
        translate=_deepspec,
    ),
    layout_of_class("DSparkDraftModel", "specforge-dspark", "SpecForge DSpark", "dspark", _specforge),
)
