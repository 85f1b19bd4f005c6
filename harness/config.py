"""What a reproduction may say: typed, closed, and checked before any job starts.

`load_all` is called by the Snakefile, `load_reproduction` by the report; the commands receive from the Snakefile, as
JSON, only the sections that can change their output (`parse_settings`). How faults are worded: `harness.faults`.
"""

import json
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

import algorithms
from harness.agreement import disagreements
from harness.errors import UserError
from harness.faults import explain
from harness.sections.base import Strict
from harness.sections.data import Data
from harness.sections.evaluate import Evaluate, Gates
from harness.sections.serve import Ngram, Serve
from harness.sections.training import Capture, Training
from harness.sections.verifier import Needs, Verifier, VerifierCheck
from harness.yamlfile import read_yaml

REPRODUCTIONS = Path("reproductions")
SCALES = ("full", "smoke")


SettingsModel = TypeVar("SettingsModel", bound=BaseModel)


class Reproduction(Strict):
    """One verifier: its data, its drafts, its measurements. See reproductions/<name>/reproduction.yaml."""

    name: str = Field(pattern=r"^[a-z0-9_]+$", description="use the folder's name: small letters, digits, _")
    scale: Literal["full", "smoke", "mini"] = Field("full", description="set by the target, not by hand")
    verifier: Verifier
    verifier_checks: list[VerifierCheck] = Field(min_length=1, description="give at least one known answer")
    needs: Needs
    data: Data
    capture: Capture
    training: Training
    algorithms: dict[str, dict[str, Any]] = Field(min_length=1, description="give at least one algorithm")
    serve: Serve
    ngram: Ngram
    evaluate: Evaluate
    gates: Gates = Field(default_factory=Gates)

    @property
    def target(self) -> str:
        """Name of the results folder and of the Snakemake target without `reproduce_`."""
        return self.name if self.scale == "full" else f"{self.name}_{self.scale}"

    @property
    def variants(self) -> list[str]:
        """What is served and measured: no speculation first, then n-gram, then every algorithm."""
        return ["none", "ngram", *self.algorithms]


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, section by section; lists are replaced whole."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def validate(model: type[SettingsModel], content: Any, source: str) -> SettingsModel:
    """`content` as a `model`; a `UserError` that names every fault otherwise."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UserError(explain(error, source, model)) from None


def parse_settings(text: str, model: type[SettingsModel], source: str = "--settings") -> SettingsModel:
    """The JSON that a rule passes to its command, as a `model`."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{source}: not JSON ({error}). Fix: pass the section as JSON") from None
    return validate(model, content, source)


def _checked_algorithms(reproduction: Reproduction, source: str) -> None:
    for name, knobs in reproduction.algorithms.items():
        try:
            model = algorithms.config_class(name, f"{source}: algorithms")
        except algorithms.UnknownAlgorithm as error:
            raise UserError(str(error)) from None
        validate(model, knobs, f"{source}: algorithms.{name}")


def load_reproduction(name: str, scale: str = "full", folder: Path = REPRODUCTIONS) -> Reproduction:
    """Read `<folder>/<name>/reproduction.yaml` at `scale`: the `smoke:` section is laid over the rest for smoke.

    Raises:
        UserError: no such reproduction, or what is wrong in the file, one line per fault.
    """
    path = folder / name / "reproduction.yaml"
    if not path.exists():
        known = ", ".join(reproduction_names(folder)) or "none"
        raise UserError(f"{path}: no such file. Fix: use one of: {known}")
    content = read_yaml(path)
    changes = content.pop("smoke", None)
    for key in ("name", "scale"):
        if key in content:
            raise UserError(f"{path}: {key}: is not set in the file. Fix: leave it out; folder and target give it")
    if scale == "smoke":
        if not isinstance(changes, dict):
            raise UserError(f"{path}: smoke: missing. Fix: add a smoke section with what differs")
        if shared := {"verifier", "verifier_checks"} & changes.keys():
            raise UserError(
                f"{path}: smoke.{sorted(shared)[0]}: both scales share the verifier. Fix: leave it out there"
            )
        content = merge(content, changes)
    source = str(path) if scale == "full" else f"{path} with its {scale} section"
    reproduction = validate(Reproduction, content | {"name": name, "scale": scale}, source)
    _checked_algorithms(reproduction, source)
    if faults := list(disagreements(reproduction)):
        raise UserError("\n".join(f"{source}: {fault}" for fault in faults))
    return reproduction


def reproduction_names(folder: Path = REPRODUCTIONS) -> list[str]:
    """Names of all reproductions in `folder`."""
    return sorted(path.parent.name for path in folder.glob("*/reproduction.yaml"))


def load_all(folder: Path = REPRODUCTIONS) -> dict[str, Reproduction]:
    """Every reproduction at every scale, by target.

    Raises:
        UserError: there is none, one is at fault, or two have the same target.
    """
    loaded: dict[str, Reproduction] = {}
    for name in reproduction_names(folder):
        for scale in SCALES:
            reproduction = load_reproduction(name, scale, folder)
            if reproduction.target in loaded:
                raise UserError(
                    f"{folder / name}: target {reproduction.target} is taken. Fix: give the folder another name"
                )
            loaded[reproduction.target] = reproduction
    if not loaded:
        raise UserError(f"{folder}: holds no reproduction. Fix: run from the repository root")
    return loaded
