"""Pydantic's errors as sentences: the knob by its dotted path, its value, the remedy."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from denoisers.contract import Spec
from ditlab.errors import nearest
from ditlab.spec.composition.mixture import in_part
from ditlab.spec.format_value import format_bound, format_value, printable_sentence
from ditlab.spec.reading.field_paths import (
    added_names,
    annotation_at,
    members,
    options,
    plain_path,
    spec_at,
    unknown_field,
)

# What a value must be, by pydantic's name for the mistake; the rest is pydantic's own wording.
WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text (in quotes where it looks like something else)",
    "tuple_type": "a list",
    "list_type": "a list",
    "finite_number": "finite",
    "string_too_short": "at least a character long",
}
BOUNDS = {"greater_than": "above", "greater_than_equal": "at least", "less_than": "below", "less_than_equal": "at most"}
MAPPING_WANTED = ("model_type", "model_attributes_type", "dict_type", "mapping_type")


def explain(error: ValidationError, cls: type[Spec], mapping: Mapping[str, Any]) -> Iterator[str]:
    """One sentence per mistake."""
    seen = set()
    for detail in error.errors():
        keys = plain_path(detail["loc"], cls, mapping)
        if _of_another_alternative(detail, annotation_at(cls, mapping, keys)):
            continue
        line = printable_sentence(_as_part(_sentence(detail, keys, cls, mapping), keys, cls, mapping))
        if line not in seen:
            seen.add(line)
            yield line


def _as_part(sentence: str, keys: Sequence[str], cls: type[Spec], mapping: Mapping[str, Any]) -> str:
    """A source's sentence names `data.path`, and `data.parts.NAME.path` where it is a part of a mixture."""
    part = spec_at(cls, mapping, keys[:3]) if keys[:2] == ["data", "parts"] and len(keys) > 2 else None
    return in_part(sentence, keys[2], part) if part else sentence


def _of_another_alternative(detail: Any, annotation: Any) -> bool:
    """Return True if a mistake concerns another alternative (`number or mapping`) than the one that was written."""
    alternatives = [member for member in members(annotation) if member is not type(None)]
    mappings = [member for member in alternatives if options(member)]
    if not mappings or len(mappings) == len(alternatives):
        return False
    if isinstance(detail.get("input"), Mapping):
        return detail["type"] in WANTED
    return detail["type"] in MAPPING_WANTED


def _sentence(detail: Any, keys: Sequence[str], cls: type[Spec], mapping: Mapping[str, Any]) -> str:
    path, kind, context = ".".join(keys), detail["type"], detail.get("ctx", {})
    value = format_value(detail.get("input"))
    if kind == "value_error":
        message = str(context["error"])
        return message if "=" in message or not path or message.startswith(path) else f"{path}={value}: {message}"
    if kind in ("extra_forbidden", "invalid_key"):
        parent = spec_at(cls, mapping, keys[:-1])
        assignment = f"={value}" if kind == "extra_forbidden" else ""
        return unknown_field(cls, mapping, keys, parent, assignment) if parent else f"{path} is no known field."
    if kind == "missing":
        return f"{path} is missing; give it a value."
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _selector_sentence(path, context, annotation_at(cls, mapping, keys), added_names(cls, keys))
    if kind in BOUNDS:
        bound = next(value for value in context.values())
        off = ", or null for none" if detail.get("input") == 0 and _null_is_off(cls, mapping, keys) else ""
        return f"{path}={value} must be {BOUNDS[kind]} {format_bound(bound)}{off}."
    if kind == "literal_error":
        return f"{path}={value} must be {context['expected']}."
    if kind in MAPPING_WANTED:
        return f"{path}={value} must be a mapping of fields{_known_below(annotation_at(cls, mapping, keys))}."
    if kind in WANTED:
        return f"{path}={value} must be {WANTED[kind]}."
    wording = detail["msg"].removeprefix("Input should be ")
    return f"{path}={value} must be {wording}." if wording != detail["msg"] else f"{path}={value}: {wording}."


def _null_is_off(cls: type[Spec], mapping: Mapping[str, Any], keys: Sequence[str]) -> bool:
    """Return True for a field that null switches off: it may be null and is a number by default."""
    parent = spec_at(cls, mapping, keys[:-1])
    field = parent.model_fields.get(keys[-1]) if parent else None
    return field is not None and type(None) in members(field.annotation) and isinstance(field.default, int)


def _selector_sentence(path: str, context: Mapping[str, Any], annotation: Any, added: Sequence[str]) -> str:
    selector = str(context["discriminator"]).strip("'")
    known = [*(str(option.model_fields[selector].default) for option in options(annotation)), *added]
    if "tag" not in context:
        return f"{path}.{selector} is missing; set it to one of {', '.join(known)}."
    return f"{path}.{selector}={context['tag']!r} is unknown; {nearest(str(context['tag']), known)}"


def _known_below(annotation: Any) -> str:
    names = [name for option in options(annotation)[:1] for name in option.model_fields]
    return f" ({', '.join(names)})" if names else ""
