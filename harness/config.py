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
from harness.recipes import REPRODUCTIONS, at_scale, read_recipe, reproduction_names, scales_of
from harness.sections.base import Strict
from harness.sections.data import Data
from harness.sections.evaluate import Evaluate, Gates
from harness.sections.plan import Plan
from harness.sections.serve import Baselines, Quantised, Serve
from harness.sections.training import Capture, Training
from harness.sections.verifier import Needs, Verifier, VerifierCheck
from harness.serving.baselines import asked_for, missing

BASE = "none"
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
    baselines: Baselines = Field(default_factory=Baselines)
    quantised: Quantised | None = Field(None, description="give a scheme, or leave it out")
    evaluate: Evaluate
    gates: Gates = Field(default_factory=Gates)
    plan: Plan | None = Field(None, description="give the verifier's sizes and mean lengths, or leave it out")

    @property
    def target(self) -> str:
        """Name of the results folder and of the Snakemake target without `reproduce_`."""
        return self.name if self.scale == "full" else f"{self.name}_{self.scale}"

    @property
    def model(self) -> str:
        """Name of the verifier's folder under models/: a miniature has one of its own, smoke shares that of full."""
        return self.target if self.scale == "mini" else self.name

    @property
    def variants(self) -> list[str]:
        """What is served and measured: no drafting, the baselines that run here, the algorithms, all in few bits."""
        baselines = [name for name in asked_for(self.baselines) if missing(name) is None]
        return [BASE, *baselines, *self.algorithms, *self.quantised_variants]

    @property
    def quantised_variants(self) -> dict[str, str]:
        """Variants that the quantised verifier serves, each with its name without quantisation."""
        if self.quantised is None:
            return {}
        return {f"{name}_{self.quantised.scheme}": name for name in (BASE, *self.quantised.algorithms)}

    def base_of(self, variant: str) -> str:
        """The same verifier without drafting: its greedy replies are those that `variant` must give."""
        if self.quantised is None or variant not in self.quantised_variants:
            return BASE
        return f"{BASE}_{self.quantised.scheme}"


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
    """Read `<folder>/<name>/reproduction.yaml` at `scale`; `harness.recipes` says what lies over what.

    Raises:
        UserError: no such reproduction, or what is wrong in the file, one line per fault.
    """
    return _checked(read_recipe(name, folder), name, scale, folder)


def _checked(recipe: dict[str, Any], name: str, scale: str, folder: Path) -> Reproduction:
    path = folder / name / "reproduction.yaml"
    content = at_scale(recipe, scale, path)
    source = str(path) if scale == "full" else f"{path} with its {scale} section"
    reproduction = validate(Reproduction, content | {"name": name, "scale": scale}, source)
    _checked_algorithms(reproduction, source)
    if faults := list(disagreements(reproduction)):
        raise UserError("\n".join(f"{source}: {fault}" for fault in faults))
    return reproduction


def load_all(folder: Path = REPRODUCTIONS) -> dict[str, Reproduction]:
    """Every reproduction at every scale that it has, by target.

    Raises:
        UserError: there is none, one is at fault, or two have the same target.
    """
    loaded: dict[str, Reproduction] = {}
    for name in reproduction_names(folder):
        recipe = read_recipe(name, folder)
        for scale in scales_of(recipe):
            reproduction = _checked(recipe, name, scale, folder)
            if reproduction.target in loaded:
                raise UserError(
                    f"{folder / name}: target {reproduction.target} is taken. Fix: give the folder another name"
                )
            loaded[reproduction.target] = reproduction
    for reproduction in loaded.values():
        instead, names = reproduction.needs.instead, reproduction_names(folder)
        if instead and instead not in names:
            place = f"{folder / reproduction.name / 'reproduction.yaml'}: needs.instead = {instead!r}"
            raise UserError(f"{place}: no such reproduction. Fix: use one of: {', '.join(names)}")
    if not loaded:
        raise UserError(f"{folder}: holds no reproduction. Fix: run from the repository root")
    return loaded
