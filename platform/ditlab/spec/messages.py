"""Pydantic's errors as sentences: the knob by its dotted path, its value, the remedy."""

import types
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import ValidationError

from denoisers.contract import Spec
from ditlab.errors import UserError, nearest

LONGEST = 60  # characters of a value, and items of a collection, that a sentence can carry
SELECTORS = ("kind", "family")

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
        keys = _plain_path(detail["loc"], cls, mapping)
        if _of_another_alternative(detail, _annotation_at(cls, mapping, keys)):
            continue
        line = _sentence(detail, keys, cls, mapping)
        if line not in seen:
            seen.add(line)
            yield line


def shown(value: Any) -> str:
    """A value as YAML writes it, cut to what a sentence can carry."""
    return _cut(_flow(value))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 20]}... ({len(text)} characters)"


def _flow(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return repr(value)
        case Mapping():
            return "{" + ", ".join(f"{key}: {_flow(below)}" for key, below in islice(value.items(), LONGEST)) + "}"
        case list() | tuple():
            return "[" + ", ".join(_flow(below) for below in islice(value, LONGEST)) + "]"
    return str(value)


def check_path(cls: type[Spec], mapping: Mapping[str, Any], keys: Sequence[str], source: str) -> None:
    """Raises UserError, beginning with `source` and naming the nearest field, where a dotted path leads nowhere."""
    for depth, key in enumerate(keys):
        parent = spec_at(cls, mapping, keys[:depth])
        if parent is None:
            above = ".".join(keys[:depth])
            raise UserError(f"{source}: {above} is a plain value and holds no '{key}'; set {above} itself.")
        if key not in parent.model_fields:
            raise UserError(f"{source}: {_unknown(cls, mapping, keys[: depth + 1], parent)}")


def _unknown(
    cls: type[Spec], mapping: Mapping[str, Any], keys: Sequence[str], parent: type[Spec], value: str = ""
) -> str:
    """Why a path's last key is no field of `parent`, and what is. `value` (`=3`) is what it was to be."""
    above, key = ".".join(keys[:-1]), keys[-1]
    known, name = list(parent.model_fields), f"{_cut(key)}{value}"
    for selector in SELECTORS:
        if above and selector in parent.model_fields:
            own = parent.model_fields[selector].default
            for other in options(_annotation_at(cls, mapping, keys[:-1])):
                if key in other.model_fields and selector in other.model_fields:
                    there = other.model_fields[selector].default
                    return f"{above}.{selector}={own} has no field '{name}'; set {above}.{selector} to {there} first."
            return f"{above}.{selector}={own} has no field '{name}'; {nearest(key, known)}"
    return f"{above + '.' if above else ''}{name} is no known field; {nearest(key, known)}"


def _of_another_alternative(detail: Any, annotation: Any) -> bool:
    """Whether a mistake is one of `number or mapping` that does not concern the alternative that was written."""
    members = [member for member in _members(annotation) if member is not type(None)]
    mappings = [member for member in members if options(member)]
    if not mappings or len(mappings) == len(members):
        return False
    if isinstance(detail.get("input"), Mapping):
        return detail["type"] in WANTED
    return detail["type"] in MAPPING_WANTED


def _sentence(detail: Any, keys: Sequence[str], cls: type[Spec], mapping: Mapping[str, Any]) -> str:
    path, kind, context = ".".join(keys), detail["type"], detail.get("ctx", {})
    value = shown(detail.get("input"))
    if kind == "value_error":
        message = str(context["error"])
        return message if "=" in message or not path or message.startswith(path) else f"{path}={value}: {message}"
    if kind in ("extra_forbidden", "invalid_key"):
        parent = spec_at(cls, mapping, keys[:-1])
        assignment = f"={value}" if kind == "extra_forbidden" else ""
        return _unknown(cls, mapping, keys, parent, assignment) if parent else f"{path} is no known field."
    if kind == "missing":
        return f"{path} is missing; give it a value."
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _selector_sentence(path, context, _annotation_at(cls, mapping, keys))
    if kind in BOUNDS:
        bound = next(value for value in context.values())
        return f"{path}={value} must be {BOUNDS[kind]} {_readable(bound)}."
    if kind == "literal_error":
        return f"{path}={value} must be {context['expected']}."
    if kind in MAPPING_WANTED:
        return f"{path}={value} must be a mapping of fields{_known_below(_annotation_at(cls, mapping, keys))}."
    if kind in WANTED:
        return f"{path}={value} must be {WANTED[kind]}."
    wording = detail["msg"].removeprefix("Input should be ")
    return f"{path}={value} must be {wording}." if wording != detail["msg"] else f"{path}={value}: {wording}."


def _selector_sentence(path: str, context: Mapping[str, Any], annotation: Any) -> str:
    selector = str(context["discriminator"]).strip("'")
    known = [str(option.model_fields[selector].default) for option in options(annotation)]
    if "tag" not in context:
        return f"{path}.{selector} is missing; set it to one of {', '.join(known)}."
    return f"{path}.{selector}={context['tag']!r} is unknown; {nearest(str(context['tag']), known)}"


def _known_below(annotation: Any) -> str:
    names = [name for option in options(annotation)[:1] for name in option.model_fields]
    return f" ({', '.join(names)})" if names else ""


def _readable(bound: Any) -> str:
    if isinstance(bound, int) and bound >= 2**53 and bound & (bound - 1) == 0:
        return f"2^{bound.bit_length() - 1}"
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _plain_path(loc: Sequence[int | str], cls: type[Spec], mapping: Mapping[str, Any]) -> list[str]:
    """Pydantic's location without the tags that it adds for unions."""
    keys: list[str] = []
    annotation: Any = cls
    below: Any = mapping
    for part in loc:
        owner = next((option for option in options(annotation) if str(part) in option.model_fields), None)
        if isinstance(part, int) or owner or (isinstance(below, Mapping) and part in below):
            keys.append(str(part))
            annotation = owner.model_fields[str(part)].annotation if owner else None
            below = below.get(part) if isinstance(below, Mapping) else None
    return keys


def _annotation_at(cls: type[Spec], mapping: Any, keys: Sequence[str]) -> Any:
    """The declared type of a field, None where the path leads nowhere."""
    parent = spec_at(cls, mapping, keys[:-1])
    return parent.model_fields[keys[-1]].annotation if parent and keys and keys[-1] in parent.model_fields else None


def _members(annotation: Any) -> list[Any]:
    """The alternatives of an annotation: unwraps Annotated and unions."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _members(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [member for argument in get_args(annotation) for member in _members(argument)]
    return [annotation]


def options(annotation: Any) -> list[type[Spec]]:
    """The spec classes that an annotation allows."""
    return [member for member in _members(annotation) if isinstance(member, type) and issubclass(member, Spec)]


def spec_at(cls: type[Spec], mapping: Any, keys: Sequence[str]) -> type[Spec] | None:
    """The spec class at a dotted path, unions decided by the mapping's `kind` or `family`, else by the default.

    None where the path leads to no spec.
    """
    current: type[Spec] = cls
    for key in keys:
        if key not in current.model_fields:
            return None
        field = current.model_fields[key]
        candidates = options(field.annotation)
        mapping = mapping.get(key) if isinstance(mapping, Mapping) else None
        chosen = [option for option in candidates if _selected(option, mapping)]
        if not chosen and isinstance(field.default, Spec):
            chosen = [type(field.default)]
        if not (chosen or candidates):
            return None
        current = (chosen or candidates)[0]
    return current


def _selected(option: type[Spec], mapping: Any) -> bool:
    if not isinstance(mapping, Mapping):
        return False
    for selector in SELECTORS:
        if selector in option.model_fields and selector in mapping:
            return mapping[selector] in get_args(option.model_fields[selector].annotation)
    return False
