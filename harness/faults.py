"""Faults of settings in words: file and key, the value given, the rule broken, what to do; one line each.

Called by `harness.config.validate`.
"""

import types
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

SHOWN_CHARACTERS = 80


def _options(annotation: Any) -> list[Any]:
    """The types that an annotation allows, without `Annotated` and `None`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _options(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [each for one in get_args(annotation) if one is not type(None) for each in _options(one)]
    return [annotation]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _has_tag(model: type[BaseModel], tag: Any) -> bool:
    """Whether one of the model's fields names kinds, `tag` among them: it stands in the location of a tagged union."""
    fields = model.model_fields.values()
    return any(get_origin(field.annotation) is Literal and tag in get_args(field.annotation) for field in fields)


def _step(annotation: Any, part: Any) -> tuple[Any, bool]:
    """The annotation one part further down, and whether the part stands in the user's file (a tag does not)."""
    options = _options(annotation)
    tagged = [each for each in options if _is_model(each) and _has_tag(each, part)]
    if len(options) > 1 and tagged:
        return tagged[0], False
    for each in options:
        if _is_model(each) and part in each.model_fields:
            return each.model_fields[part].annotation, True
        if get_origin(each) in (list, dict, tuple) and get_args(each):
            return get_args(each)[-1], True
    return None, True


def _place(model: type[BaseModel], location: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    """A location as people write it, and the fields of the section around its last part."""
    annotation: Any = model
    around: dict[str, Any] = {}
    words = []
    for part in location:
        if part == "[key]":  # after the key that is at fault
            continue
        sections = [each for each in _options(annotation) if _is_model(each)]
        following, written = _step(annotation, part)
        if written:
            words.append(str(part))
            around = sections[0].model_fields if len(sections) == 1 else {}
        annotation = following
    return ".".join(words), dict(around)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _advice(name: str, fields: dict[str, Any]) -> str:
    """What to do about a field: its description, or for a section the keys that it must have."""
    field = fields.get(name)
    if field is None:
        return "see reproductions/smollm2_135m/reproduction.yaml for one that is right"
    if field.description:
        return field.description
    sections = [each for each in _options(field.annotation) if _is_model(each)]
    wanted = [key for each in sections[:1] for key, value in each.model_fields.items() if value.is_required()]
    example = "for example " if len(sections) > 1 else ""
    return f"give a section, {example}with {', '.join(wanted)}" if wanted else "give a section"


def _unknown(name: str, fields: dict[str, Any]) -> str:
    near = get_close_matches(name, fields, n=1)
    return near[0] if near else f"use one of {', '.join(sorted(fields))}"


def _line(fault: Any, source: str, model: type[BaseModel]) -> str:
    place, fields = _place(model, fault["loc"])
    name = place.rpartition(".")[2]
    where = f"{source}: {place}" if place else source
    said = fault["msg"].removeprefix("Value error, ")
    tag_key = f"{where}.{fault.get('ctx', {}).get('discriminator', '').strip(chr(39))}"
    match fault["type"]:
        case "extra_forbidden":
            return f"{where}: no such key. Fix: {_unknown(name, fields)}"
        case "missing":
            return f"{where}: missing. Fix: {_advice(name, fields)}"
        case "value_error":  # of a section: the message names the keys and their values
            return f"{where}: {said}" if "Fix:" in said else f"{where}: {said}. Fix: correct it"
        case "union_tag_invalid":
            kinds = fault["ctx"]
            return f"{tag_key} = {kinds['tag']!r}: no such kind. Fix: use one of {kinds['expected_tags']}"
        case "union_tag_not_found":
            return f"{tag_key}: missing. Fix: say which kind it is"
        case "model_type" | "dict_type" | "model_attributes_type":
            return f"{where} = {_shown(fault['input'])}: not a section. Fix: {_advice(name, fields)}"
        case _:
            return f"{where} = {_shown(fault['input'])}: {said}. Fix: {_advice(name, fields)}"


def explain(error: ValidationError, source: str, model: type[BaseModel]) -> str:
    """One line per fault of `error`, which came of validating as `model` what `source` (a file, an option) gave."""
    return "\n".join(_line(fault, source, model) for fault in error.errors())
