"""Layouts of other projects that become DFlash2 checkpoints.

Facts: z-lab/dflash `dflash/model.py` and its test fixtures (convolutions and selector under the names the server has;
the codebooks are saved without `.weight`, an early form has it). Of scaled or capped logits and scaled embeddings the
server knows from the source's own config alone.
"""

from typing import Any

from algorithms.dflash.foreign import either, plain_block
from algorithms.dflash2.export import SIZES
from algorithms.dflash2.format import FORMAT
from algorithms.foreign import Case, ForeignError, layout_of_class


def _zlab(case: Case) -> dict[str, Any]:
    content, section = plain_block(case, "dflash2", scales_are_served=True)
    sizes = {key: either(case, section, key) for key in SIZES}
    missing = [key for key, value in sizes.items() if value is None]
    if missing:
        raise ForeignError(f"config.json: {', '.join(missing)}: missing. Fix: write the trained values there")
    for name in ("predecessor_codebook", "successor_codebook"):
        if f"candidate_selector.{name}.weight" in case.ledger:
            case.ledger.move(f"candidate_selector.{name}.weight", f"candidate_selector.{name}")
    content |= sizes
    case.ledger.carry(FORMAT.required_tensors(content), FORMAT.optional_tensors(content))
    return content


LAYOUTS = (
    layout_of_class(
        "DFlash2DraftModel", "z-lab-dflash2", "z-lab DFlash2; SpecForge's exports of it are the same", "dflash2", _zlab
    ),
)
