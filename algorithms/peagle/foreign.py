"""Layouts of other projects that become P-EAGLE checkpoints.

Facts: sgl-project/SpecForge `modeling/draft/peagle.py` (first layer as EAGLE-3's, further ones plain, `mask_hidden`,
plain rope whatever the config says of scaling; its config names neither the mask token nor the trained depth).
"""

from typing import Any

from algorithms.eagle3.foreign import DEFAULT_BASE, listed_layers, network
from algorithms.exporting import header
from algorithms.foreign import Case, ForeignError, layout_of_class
from algorithms.peagle.export import FLAGS
from algorithms.peagle.format import FORMAT


def _specforge(case: Case) -> dict[str, Any]:
    fields, ledger = case.fields, case.ledger
    if fields.get("rope_scaling"):
        raise ForeignError("config.json: rope_scaling: SpecForge's code turns without it here. Fix: remove it")
    fields.only("fc_norm", False, "the server has no norm on each verifier state here")
    fields.only("norm_output", False, "no state is fed back")
    mask = case.answered("mask_token_id", fields.get("mask_token_id"), "mask_token_id", "with the trained mask token")
    tokens = case.answers.speculative_tokens
    if tokens is None:
        raise ForeignError("config.json: trained depth: missing. Fix: pass --speculative-tokens, at most that")
    content = network(case, "llama", listed_layers(case), DEFAULT_BASE, FLAGS)
    state = ledger.look("mask_hidden")
    if state is not None:
        ledger.move("mask_hidden", tensor=state.reshape(1, 1, -1))
    content = header("peagle", tokens) | content | {"mask_token_id": mask}
    ledger.carry(FORMAT.required_tensors(content), FORMAT.optional_tensors(content))
    return content


LAYOUTS = (layout_of_class("PEagleDraftModel", "specforge-peagle", "SpecForge P-EAGLE", "peagle", _specforge),)
