"""Fixes variables of a chat template in the verifier's own folder, such as whether the model thinks before it answers.

Called by `sources.py`. Everyone who reads the folder (capture, server, load generator, accuracy) then renders the same
prompts without being told.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from harness.errors import UserError
from harness.files import replacing

Value = bool | int | str


def fix_variables(folder: Path, variables: Mapping[str, Value]) -> None:
    """Put assignments of `variables` before the template, whatever a caller passes for them.

    Raises:
        UserError: the template never reads one of them.
    """
    if not variables:
        return
    path, config_path = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    config = {} if path.exists() else json.loads(config_path.read_text())
    template = path.read_text() if path.exists() else config["chat_template"]
    for name in variables:
        if name not in template:
            raise UserError(f"verifier.template.{name}: its chat template reads no such variable. Fix: leave it out")
    fixed = "".join(f"{{%- set {name} = {_literal(value)} %}}" for name, value in variables.items()) + template
    if path.exists():
        target, text = path, fixed
    else:
        target, text = config_path, json.dumps(config | {"chat_template": fixed}, indent=2, ensure_ascii=False) + "\n"
    with replacing(target) as partial:  # a new file: the old one may be a link into the hub's cache
        partial.write_text(text)


def _literal(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else json.dumps(value)
