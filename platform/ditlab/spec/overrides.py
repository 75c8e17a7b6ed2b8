"""Single fields set by dotted path, what stands at a path, and errors as sentences that name it.

`--set` on a command line, `fixed` and the values of a sweep's trials set fields.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import ConfigDict, ValidationError, create_model

from denoisers.contract import Spec
from denoisers.extensions import LOSS_COMPONENTS, TIME_DENSITIES
from ditlab.errors import UserError, nearest
from ditlab.spec.mixture import in_part
from ditlab.spec.plugins import DATA_SOURCES
from ditlab.spec.values import format_bound, format_value, printable, printable_sentence, shorten
from ditlab.spec.yaml_text import parse_yaml

ClassOf = Callable[[dict[str, Any]], type[Spec]]
"""Gives the spec class that a mapping is written for."""
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


@dataclass(frozen=True)
class Assignment:
    """A value for one field."""

    path: str
    """Dotted: `optimizer.lr`."""
    value: Any
    source: str
    """Beginning of messages about it: `--set optimizer.lr=fast`."""

    @property
    def keys(self) -> list[str]:
        """The path's parts."""
        return self.path.split(".")


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`: mappings merge, lists replace; another `family` or `kind` replaces the whole mapping."""
    if any(key in above and key in below and above[key] != below[key] for key in SELECTORS):
        return dict(above)
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def apply_overrides(mapping: dict[str, Any], overrides: Sequence[str], class_of: ClassOf) -> dict[str, Any]:
    """`model.depth=9` and the like, in turn. The value is YAML: `null`, `[0.9, 0.99]`, `{kind: norm}` all work.

    Raises UserError for a path that leads nowhere, and for a change of kind that undoes an earlier override.
    """
    return assign(mapping, parse_overrides(overrides), class_of)


def parse_overrides(overrides: Sequence[str]) -> Iterator[Assignment]:
    """The text of `--set`, one by one. Raises UserError for what is no path and value."""
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip()
        source = f"--set {printable(override if len(override) <= 80 else override[:60] + '...')}"
        if not equals or not all(path.split(".")) or not path.isprintable():
            raise UserError(f"{source}: write a dotted path and a value, such as --set optimizer.lr=1e-4.")
        yield Assignment(path, parse_yaml(text, source), source)


def depth(path: str) -> tuple[int, bool]:
    """Sorts paths so that none undoes another: a mapping before its kind, its kind before its other fields."""
    keys = path.split(".")
    selector = keys[-1] in SELECTORS
    return len(keys) - selector, selector


def outermost_first(assignments: Iterable[Assignment]) -> list[Assignment]:
    """Return the assignments sorted by `depth`, otherwise as given."""
    return sorted(assignments, key=lambda assignment: depth(assignment.path))


def assign(mapping: dict[str, Any], assignments: Iterable[Assignment], class_of: ClassOf) -> dict[str, Any]:
    """The mapping with each field set in turn; `class_of` gives the spec class that a mapping is written for.

    Raises UserError for a path that leads nowhere, and for a change of kind that undoes an earlier assignment.
    """
    done: list[Assignment] = []
    for assignment in assignments:
        keys, value = assignment.keys, assignment.value
        mapping = _with_default_kinds(mapping, assignment, class_of)
        if keys[-1] in SELECTORS and value_at(mapping, keys) != value:
            for earlier in done:
                if earlier.keys[:-1] == keys[:-1] and earlier.keys[-1] not in SELECTORS:
                    raise UserError(
                        f"{assignment.source} would undo {earlier.source}, given before it; give {assignment.path} "
                        "first."
                    )
        mapping = merge(mapping, nested(keys, value))
        done.append(assignment)
    return mapping


def nested(keys: Sequence[str], value: Any) -> Any:
    """A value under its path: `{optimizer: {lr: 0.1}}`."""
    for key in reversed(keys):
        value = {key: value}
    return value


def value_at(mapping: Any, keys: Sequence[str]) -> Any:
    """Return the value at a path, None where there is none."""
    for key in keys:
        mapping = mapping.get(key) if isinstance(mapping, Mapping) else None
    return mapping


def with_field(mapping: dict[str, Any], keys: Sequence[str], value: Any = None) -> dict[str, Any]:
    """Return the mapping with a value at a path where it has none: the spec class of some mappings depends on the names
    of the fields that they have (loss components of other packages)."""
    return mapping if value_at(mapping, keys) is not None else merge(mapping, nested(keys, value))


def _with_default_kinds(mapping: dict[str, Any], assignment: Assignment, class_of: ClassOf) -> dict[str, Any]:
    """Return the mapping with the default kinds of the mappings around a field that an assignment sets, where a file
    leaves them out: the field would belong to no kind. Raises UserError for a path that leads nowhere."""
    keys = assignment.keys
    try:
        cls = class_of(with_field(mapping, keys, assignment.value))
    except UserError:
        return mapping  # reported later, for the whole experiment
    check_path(cls, mapping, keys, assignment.source)
    for depth in range(1, len(keys)):
        spec = spec_at(cls, mapping, keys[:depth])
        if value_at(mapping, keys[:depth]) is None and spec and "kind" in spec.model_fields:
            mapping = merge(mapping, nested(keys[:depth], {"kind": spec.model_fields["kind"].default}))
    return mapping


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
