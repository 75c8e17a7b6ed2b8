"""Pydantic's errors as sentences: the knob by its dotted path, its value, the remedy."""

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import ValidationError

from denoisers.contract import Spec
from ditlab.errors import nearest


def explain(error: ValidationError, cls: type[Spec], mapping: Mapping[str, Any]) -> Iterator[str]:
    """One sentence per mistake."""
    seen = set()
    for detail in error.errors():
        line = _sentence(detail, cls, mapping)
        if line not in seen:
            seen.add(line)
            yield line


def _sentence(detail: Any, cls: type[Spec], mapping: Mapping[str, Any]) -> str:
    keys = _plain_path(detail["loc"], cls, mapping)
    path, kind, value = ".".join(keys), detail["type"], detail.get("input")
    if kind == "value_error":
        message = str(detail["ctx"]["error"])
        return message if "=" in message or not path else f"{path}={value!r}: {message}"
    if kind == "extra_forbidden":
        parent = spec_at(cls, mapping, keys[:-1])
        known = list(parent.model_fields) if parent else []
        return f"{path}={value!r} is no known field; {nearest(keys[-1], known)}"
    if kind == "missing":
        return f"{path} is missing; give it a value."
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        selector = str(detail["ctx"]["discriminator"]).strip("'")
        expected = [tag.strip(" '") for tag in str(detail["ctx"].get("expected_tags", "")).split(",") if tag]
        if not expected:
            return f"{path}.{selector} is missing; name the {selector}."
        return f"{path}.{selector}={detail['ctx']['tag']!r} is unknown; {nearest(str(detail['ctx']['tag']), expected)}"
    return f"{path}={value!r}: {detail['msg'][0].lower()}{detail['msg'][1:]}."


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


def options(annotation: Any) -> list[type[Spec]]:
    """The spec classes that an annotation allows: unwraps Annotated, unions and None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return options(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [option for argument in get_args(annotation) for option in options(argument)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, Spec) else []


def spec_at(cls: type[Spec], mapping: Any, keys: Sequence[str]) -> type[Spec] | None:
    """The spec class at a dotted path, unions decided by the mapping's `kind` or `family`, else by the default."""
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
    for selector in ("kind", "family"):
        if selector in option.model_fields and selector in mapping:
            return mapping[selector] in get_args(option.model_fields[selector].annotation)
    return False
