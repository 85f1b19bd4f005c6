"""The content of a recipe at a scale, not yet checked: what `like:` names lies under it, `smoke:` or `mini:` over it.

`like: defaults` names a file beside the recipes, `like: qwen3_8b` another recipe, which may be like a third.

Called by `harness.config`. A key given as `~` takes out what lies below.
"""

from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.yamlfile import read_yaml

REPRODUCTIONS = Path("reproductions")
SCALES = ("full", "smoke", "mini")
# A miniature is another model on another machine: of these sections nothing of the full recipe holds for it.
REPLACED_IN_MINI = ("verifier", "verifier_checks", "needs", "algorithms", "gates", "plan")


def reproduction_names(folder: Path = REPRODUCTIONS) -> list[str]:
    """Names of all reproductions in `folder`."""
    return sorted(path.parent.name for path in folder.glob("*/reproduction.yaml"))


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, section by section; lists are replaced whole, None takes a key out."""
    merged = dict(base)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            below = merged.get(key)
            merged[key] = merge(below if isinstance(below, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def read_recipe(name: str, folder: Path = REPRODUCTIONS, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """`<folder>/<name>/reproduction.yaml` over what it is like, whose `smoke` and `mini` are taken with its own.

    Args:
        name: of the recipe.
        folder: of all recipes.
        above: recipes that are like this one.

    Raises:
        UserError: no such reproduction, a file that is none, or one that is like itself.
    """
    path = folder / name / "reproduction.yaml"
    if not path.exists():
        known = ", ".join(reproduction_names(folder)) or "none"
        raise UserError(f"{path}: no such file. Fix: use one of: {known}")
    content = read_yaml(path)
    for key in ("name", "scale"):
        if key in content:
            raise UserError(f"{path}: {key}: is not set in the file. Fix: leave it out; folder and target give it")
    like = content.pop("like", None)
    if like is None:
        return content
    below = _below(like, path, folder, (*above, name))
    shared = {key: value for key, value in below.items() if key not in SCALES or key in content}
    return merge(shared, content)


def _below(like: Any, path: Path, folder: Path, above: tuple[str, ...]) -> dict[str, Any]:
    """The content of what the recipe at `path` is like."""
    if like in above:
        raise UserError(f"{path}: like = {like!r}: a recipe would be like itself. Fix: name another one")
    files, recipes = sorted(each.stem for each in folder.glob("*.yaml")), reproduction_names(folder)
    if like in files:
        return read_yaml(folder / f"{like}.yaml")
    if like in recipes:
        return read_recipe(like, folder, above)
    known = ", ".join(each for each in [*files, *recipes] if each not in above) or "none"
    raise UserError(f"{path}: like = {like!r}: is not there. Fix: leave it out, or use one of: {known}")


def scales_of(recipe: dict[str, Any]) -> list[str]:
    """The scales that a recipe can be run at."""
    return ["full", *(scale for scale in SCALES[1:] if scale in recipe)]


def at_scale(recipe: dict[str, Any], scale: str, path: Path) -> dict[str, Any]:
    """The recipe with the section of `scale` laid over it; `path` is what messages name.

    Raises:
        UserError: there is no such section, a smoke run with another verifier, a miniature without one.
    """
    content = {key: value for key, value in recipe.items() if key not in SCALES}
    if scale == "full":
        return content
    changes = recipe.get(scale)
    if not isinstance(changes, dict):
        raise UserError(f"{path}: {scale}: missing. Fix: add a {scale} section with what differs")
    if scale == "smoke" and (shared := {"verifier", "verifier_checks"} & changes.keys()):
        raise UserError(f"{path}: smoke.{sorted(shared)[0]}: both scales share the verifier. Fix: leave it out there")
    if scale == "mini":
        if "verifier" not in changes:
            raise UserError(f"{path}: mini.verifier: missing. Fix: name the small model that stands for the large one")
        content = {key: value for key, value in content.items() if key not in REPLACED_IN_MINI}
    return merge(content, changes)
