"""Dotted paths over the spec classes: what stands at one, and what to say where nothing does."""

import types
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import ConfigDict, create_model

from denoisers.contract import Spec
from denoisers.loss_components import LOSS_COMPONENTS
from denoisers.time_densities import TIME_DENSITIES
from ditlab.errors import UserError, nearest
from ditlab.spec.data_sources import DATA_SOURCES
from ditlab.spec.format_value import shorten

SELECTORS = ("kind", "family")


def annotation_at(cls: type[Spec], mapping: Any, keys: Sequence[str]) -> Any:
    """The declared type of a field, None where the path leads nowhere."""
    parent = spec_at(cls, mapping, keys[:-1])
    return parent.model_fields[keys[-1]].annotation if parent and keys and keys[-1] in parent.model_fields else None


def members(annotation: Any) -> list[Any]:
    """The alternatives of an annotation: unwraps Annotated and unions."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return members(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [member for argument in get_args(annotation) for member in members(argument)]
    return [annotation]


def options(annotation: Any) -> list[type[Spec]]:
    """The spec classes that an annotation allows."""
    return [member for member in members(annotation) if isinstance(member, type) and issubclass(member, Spec)]


def values_of(annotation: Any) -> Any:
    """The declared type of the values of a mapping whose names a person chooses (`parts` of a mixture); None for any
    other field."""
    return next((get_args(member)[1] for member in members(annotation) if get_origin(member) is dict), None)


def spec_at(cls: type[Spec], mapping: Any, keys: Sequence[str]) -> type[Spec] | None:
    """The spec class at a dotted path, unions decided by the mapping's `kind` or `family`, else by the default.

    A mapping whose names a person chooses counts as a spec with the fields that it has. None where the path leads to no
    spec.
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
        if not (chosen or candidates) and (values := values_of(field.annotation)) and isinstance(mapping, Mapping):
            chosen = [_with_names(mapping, values)]
        if not (chosen or candidates):
            return None
        current = (chosen or candidates)[0]
    return current


def _with_names(names: Iterable[Any], annotation: Any) -> type[Spec]:
    """A spec class that has a field of this type by each name."""
    fields: Any = {name: (annotation, ...) for name in names if isinstance(name, str) and _is_field_name(name)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic's, of a field by the name of a method: nothing is made of this class
        return create_model("Names", __base__=_Names, **fields)


class _Names(Spec):
    """Base of such classes: any name may be a field."""

    model_config = ConfigDict(protected_namespaces=())


def _is_field_name(name: str) -> bool:
    return not name.startswith("_") and name != "model_config"


def _selected(option: type[Spec], mapping: Any) -> bool:
    if not isinstance(mapping, Mapping):
        return False
    for selector in SELECTORS:
        if selector in option.model_fields and selector in mapping:
            return mapping[selector] in get_args(option.model_fields[selector].annotation)
    return False


def plain_path(loc: Sequence[int | str], cls: type[Spec], mapping: Mapping[str, Any]) -> list[str]:
    """Pydantic's location without the tags that it adds for unions."""
    keys: list[str] = []
    annotation: Any = cls
    below: Any = mapping
    for part in loc:
        chosen_first = sorted(options(annotation), key=lambda option: not _selected(option, below))
        if len(chosen_first) > 1 and isinstance(below, Mapping) and part in map(below.get, SELECTORS):
            annotation = chosen_first[0]  # its tag, which may be the name of a field, too: data.kind=motifs
            continue
        owner = next((option for option in chosen_first if str(part) in option.model_fields), None)
        if isinstance(part, int) or owner or (isinstance(below, Mapping) and part in below):
            keys.append(str(part))
            annotation = owner.model_fields[str(part)].annotation if owner else values_of(annotation)
            below = below.get(part) if isinstance(below, Mapping) else None
    return keys


def check_path(cls: type[Spec], mapping: Mapping[str, Any], keys: Sequence[str], source: str) -> None:
    """Raise UserError, beginning with `source` and naming the nearest field, where a dotted path leads nowhere."""
    for depth, key in enumerate(keys):
        parent = spec_at(cls, mapping, keys[:depth])
        if parent is None:
            above = ".".join(keys[:depth])
            raise UserError(f"{source}: {above} is a plain value and holds no '{key}'; set {above} itself.")
        if key not in parent.model_fields:
            raise UserError(f"{source}: {unknown_field(cls, mapping, keys[: depth + 1], parent)}")


def added_names(cls: type[Spec], keys: Sequence[str]) -> list[str]:
    """Return the names that installed packages add at a path of an experiment: weights, or kinds."""
    field = cls.model_fields.get("objective")
    compares = field is not None and getattr(field.annotation, "component_prediction", None) is not None
    match list(keys):
        case ["objective", "weights"] if compares:
            return LOSS_COMPONENTS.names()
        case ["objective", "time"]:
            return TIME_DENSITIES.names()
        case ["data"] | ["data", "parts", _]:
            return DATA_SOURCES.names()
    return []


def unknown_field(
    cls: type[Spec], mapping: Mapping[str, Any], keys: Sequence[str], parent: type[Spec], value: str = ""
) -> str:
    """Return the message for a path whose last key is no field of `parent`. `value` (`=3`) is the value given to it."""
    above, key = ".".join(keys[:-1]), keys[-1]
    known, name = [*parent.model_fields, *added_names(cls, keys[:-1])], f"{shorten(key)}{value}"
    for selector in SELECTORS:
        if above and selector in parent.model_fields:
            own = parent.model_fields[selector].default
            for other in options(annotation_at(cls, mapping, keys[:-1])):
                if key in other.model_fields and selector in other.model_fields:
                    there = other.model_fields[selector].default
                    return f"{above}.{selector}={own} has no field '{name}'; set {above}.{selector} to {there} first."
            return f"{above}.{selector}={own} has no field '{name}'; {nearest(key, known)}"
    return f"{above + '.' if above else ''}{name} is no known field; {nearest(key, known)}"
