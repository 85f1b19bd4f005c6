"""Reading a YAML file of settings so that a slip in it is an error. Called by `harness.config`."""

import re
from pathlib import Path
from typing import Any

import yaml

from harness.errors import UserError


class _Loader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys in silence; this loader refuses them."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                raise yaml.MarkedYAMLError(problem="a key must be a plain name", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


# PyYAML follows YAML 1.1, where 1e-3 is a text: people write it and mean the number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        UserError: one line with the place: no such file, no YAML, a key given twice, no mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - a SafeLoader
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Fix: create it, or correct the name") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text at byte {error.start}. Fix: save it as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}{line}: {error.problem or error.context}. Fix: correct the YAML there") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}. Fix: correct the YAML there") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds no settings. Fix: start from reproductions/smollm2_135m/reproduction.yaml")
    return content
