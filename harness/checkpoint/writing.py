"""Writes a draft in the speculators format: what the server reads and nothing more. Called by the training step.

The folder appears whole or not at all, and never with a fault that the linter would find in it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from harness.checkpoint.lint import checkpoint_faults
from harness.checkpoint.tensor_rules import SINGLE_FILE
from harness.files import replacing_folder, write_json

CARD, RECORD = "README.md", "provenance.json"  # what the release commands put beside a draft
FILES = {"config.json", SINGLE_FILE, CARD, RECORD}


def write_checkpoint(
    folder: Path,
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    verifier_name: str,
    verifier_architectures: Sequence[str] = (),
) -> None:
    """Write config.json and model.safetensors into `folder`, replacing what is there.

    Args:
        config: from `Algorithm.export`: everything but `speculators_config.verifier`.
        tensors: from `Algorithm.export`; dtypes are kept.
        verifier_name: hub id, or folder relative to where the server will run; it finds verifier and tokenizer there.
        verifier_architectures: `architectures` of the verifier's config.json.

    Raises:
        ValueError: the draft has a fault; the message names each.
    """
    verifier = {"name_or_path": verifier_name, "architectures": list(verifier_architectures)}
    content = config | {"speculators_config": config["speculators_config"] | {"verifier": verifier}}
    faults = checkpoint_faults(content, tensors)
    if faults:
        raise ValueError(f"{folder}: not written: " + "; ".join(f"{f.rule}: {f.found}. Fix: {f.fix}" for f in faults))
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with replacing_folder(folder) as partial:
        save_file(whole, partial / SINGLE_FILE, metadata={"format": "pt"})
        write_json(partial / "config.json", content)
