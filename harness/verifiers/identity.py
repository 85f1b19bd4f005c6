"""Which verifier a folder holds: the name and hash by which captures and trainings know theirs.

Called by `harness.capture` and `harness.training`.
"""

import json
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.files import file_sha256, json_sha256


def verifier_identity(folder: Path) -> dict[str, Any]:
    """Name and hash of the verifier: from its verifier.json, else of config and weights as they are.

    Raises:
        UserError: the folder holds no verifier.
    """
    record = folder / "verifier.json"
    if record.is_file():
        content = json.loads(record.read_text())
        return {"id": content["id"], "sha256": content["sha256"]}
    files = sorted([*folder.glob("*.json"), *folder.glob("*.safetensors")])
    if not files:
        raise UserError(f"{folder}: holds no verifier. Fix: make it with `python -m harness.verifiers`")
    return {"id": folder.name, "sha256": json_sha256({path.name: file_sha256(path) for path in files})}
