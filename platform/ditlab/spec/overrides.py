"""Single fields set by dotted path, what stands at a path, and errors as sentences that name it.

`--set` on a command line, `fixed` and the values of a sweep's trials set fields.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ditlab.errors import UserError, nearest
from ditlab.spec.mixture import in_part
from ditlab.spec.values import format_value, printable, printable_sentence, shorten, value_at
from ditlab.spec.yaml_text import parse_yaml
from ditlab_models.contract import Spec

SpecT = TypeVar("SpecT", bound=Spec)
ClassOf = Callable[[dict[str, Any]], type[Spec]]
"""Gives the spec class that a mapping is written for."""
SELECTORS = ("kind", "family", "process")
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
BOUNDS = {
    "greater_than": "above",
    "greater_than_equal": "at least",
    "less_than": "below",
    "less_than_equal": "at most",
}
NULL_WORDS = ("off", "none")
NAMES_ELSEWHERE = {
    "learning_rate": "optimizer.lr",
    "batch_size": "batch.size",
    "micro_batch_size": "batch.micro",
    "max_steps": "training.steps",
    "num_steps": "training.steps",
    "warmup_steps": "schedule.warmup",
    "hidden_size": "model.width",
    "hidden_dim": "model.width",
    "num_layers": "model.depth",
    "num_hidden_layers": "model.depth",
    "num_attention_heads": "model.num_heads",
    "vocab_size": "model.vocabulary",
    "max_length": "model.length",
    "seq_len": "model.length",
    "where": "evaluation.mode",
}
"""Fields by the names that they have in other tools, or had before, whose letters lead elsewhere:
`learning_rate` to `lr_patterns`."""
MAPPING_WANTED = ("model_type", "model_attributes_type", "dict_type", "mapping_type")


@dataclass(frozen=True)
class Assignment:
    """A value for one field."""

    path: str
    """Dotted: `optimizer.lr`."""
    value: Any
    source: str
    """Beginning of messages about it: `--set optimizer.lr=fast`."""
    text: str | None = None
    """The value as a command line has it; None for a value from elsewhere."""

    @property
    def keys(self) -> list[str]:
        """The path's parts."""
        return self.path.split(".")

    def typed(self, annotation: Any) -> Any:
        """The value for a field of a type. From a command line, a field of text takes the text as
        it is written, and one of whole numbers `1e3`. Raises UserError for `none` where null is
        meant."""
        kinds = members(annotation)
        if self.text is None:
            return self.value
        if [kind for kind in kinds if kind is not type(None)] == [str]:
            return self._typed_text(self.text, takes_null=type(None) in kinds)
        takes_whole_alone = int in kinds and float not in kinds
        if takes_whole_alone and isinstance(self.value, float) and self.value.is_integer():
            return int(self.value)
        return self.value

    def _typed_text(self, text: str, takes_null: bool) -> Any:
        """The value for a field of text: quoted text and null as YAML reads them, other text as it
        is written. Raises UserError for `none` where null is meant."""
        if takes_null and text.strip().lower() in NULL_WORDS:
            raise UserError(
                f"{self.source}: write null for none, and quotes around a text that is meant."
            )
        is_quoted = isinstance(self.value, str) and text.lstrip()[:1] in ("'", '"')
        if is_quoted or (takes_null and self.value is None):
            return self.value
        return text.strip()


def is_below(path: str, above: str) -> bool:
    """Return True if a path is another one or leads to a field in it."""
    return f"{path}.".startswith(f"{above}.")


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`: mappings merge, lists replace; another `family` or `kind` replaces the
    whole mapping.
    """
    if any(key in above and key in below and above[key] != below[key] for key in SELECTORS):
        return dict(above)
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = merge(old, value)
        merged[key] = value
    return merged


def parse_overrides(overrides: Sequence[str]) -> Iterator[Assignment]:
    """The text of `--set`, one by one: `model.depth=9`. The value is YAML (`null`, `[0.9, 0.99]`,
    `{kind: norm}`), but for fields of text (`Assignment.typed`). Raises UserError for what is no
    path and YAML."""
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip()
        shown = override
        if get_close_matches("notify", path.split(".")):  # an address may hold a token
            shown = f"{path}=..."
        if len(shown) > 80:
            shown = f"{shown[:60]}..."
        source = f"--set {printable(shown)}"
        if not equals or not all(path.split(".")) or not path.isprintable():
            raise UserError(
                f"{source}: write a dotted path and a value, such as --set optimizer.lr=1e-4."
            )
        yield Assignment(path, parse_yaml(text, source), source, text)


def in_order_of_kinds(assignments: Iterable[Assignment]) -> list[Assignment]:
    """Sort assignments so that none undoes another: a mapping before its kind, its kind before its
    other fields.
    """

    def order(assignment: Assignment) -> tuple[int, bool]:
        is_kind = assignment.keys[-1] in SELECTORS
        return (len(assignment.keys) - is_kind, is_kind)

    return sorted(assignments, key=order)


def assign(
    mapping: dict[str, Any], assignments: Iterable[Assignment], class_of: ClassOf
) -> dict[str, Any]:
    """The mapping with each field set, a kind before the fields beside it; `class_of` gives the
    spec class that a mapping is written for. Raises UserError for a path that leads nowhere."""
    for assignment in in_order_of_kinds(assignments):
        keys = assignment.keys
        value = assignment.value
        annotation = None
        # The class of some mappings depends on the names of the fields that they have (loss
        # components of packages).
        is_there = value_at(mapping, keys) is not None
        cls: type[Spec] | None = None
        with suppress(UserError):  # reported later, for the whole experiment
            cls = class_of(mapping if is_there else merge(mapping, nested(keys, value)))
        for depth, key in enumerate(keys):
            if cls is None:
                break
            fields = fields_at(cls, mapping, keys[:depth])
            above = ".".join(keys[:depth])
            if fields is None:
                problem = f"{above} is a plain value and holds no '{key}'; set {above} itself."
                raise UserError(f"{assignment.source}: {problem}")
            if key not in fields:
                problem = _unknown_field(cls, mapping, keys[: depth + 1], fields)
                raise UserError(f"{assignment.source}: {problem}")
            if depth and "kind" in fields and value_at(mapping, keys[:depth]) is None:
                # absent in a file: the field would belong to no kind
                mapping = merge(mapping, nested(keys[:depth], {"kind": fields["kind"].default}))
            annotation = fields[key].annotation
        mapping = merge(mapping, nested(keys, assignment.typed(annotation)))
    return mapping


def nested(keys: Sequence[str], value: Any) -> Any:
    """A value under its path: `{optimizer: {lr: 0.1}}`."""
    for key in reversed(keys):
        value = {key: value}
    return value


def changed_values(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield path, old and new value of what differs, field by field, down to where one of the two
    is no mapping or both are of another kind."""
    alike = isinstance(old, Mapping) and isinstance(new, Mapping)
    if alike and all(old.get(key) == new.get(key) for key in SELECTORS):
        for key in dict.fromkeys([*old, *new]):
            yield from changed_values(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new


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
    return [
        member
        for member in members(annotation)
        if isinstance(member, type) and issubclass(member, Spec)
    ]


def chosen(annotation: Any, mapping: Any, default: Any = None) -> type[Spec] | None:
    """The spec class that a mapping is written for: by its `kind` or `family`, else the default's,
    else the first.
    """
    found = options(annotation)
    for option, selector in product(found, SELECTORS):
        field = option.model_fields.get(selector)
        if field and value_at(mapping, [selector]) in get_args(field.annotation):
            return option
    if isinstance(default, Spec):
        return type(default)
    return next(iter(found), None)


def values_of(annotation: Any) -> Any:
    """The declared type of the values of a mapping whose names a person chooses (`parts` of a
    mixture, a sweep's `space`), or of a list (`notify`); None for any other field."""
    places = {dict: 1, tuple: 0}
    for each in members(annotation):
        place = places.get(get_origin(each))
        if place is not None:
            return get_args(each)[place]
    return None


def fields_at(cls: type[Spec], mapping: Any, keys: Sequence[str]) -> Mapping[str, FieldInfo] | None:
    """The fields of the spec at a path; None where the path leads to none. A mapping whose names a
    person chooses has the fields that it names."""
    fields: Mapping[str, FieldInfo] = cls.model_fields
    for key in keys:
        if key not in fields:
            return None
        annotation = fields[key].annotation
        mapping = value_at(mapping, [key])
        option = chosen(annotation, mapping, fields[key].default)
        if option:
            fields = option.model_fields
        elif (values := values_of(annotation)) and isinstance(mapping, Mapping):
            fields = {name: FieldInfo.from_annotation(values) for name in mapping}
        else:
            return None
    return fields


def field_at(cls: type[Spec], mapping: Any, keys: Sequence[str]) -> FieldInfo:
    """The field at a path; one of any type where the path leads nowhere."""
    fields = fields_at(cls, mapping, keys[:-1]) if keys else None
    return (fields or {}).get(keys[-1] if keys else "", FieldInfo(annotation=object))


def _plain_path(loc: Sequence[int | str], cls: type[Spec], mapping: Mapping[str, Any]) -> list[str]:
    """Pydantic's location without the tags that it adds for unions."""
    keys: list[str] = []
    annotation: Any = cls
    below: Any = mapping
    for part in loc:
        found = options(annotation)
        first = chosen(annotation, below)
        if len(found) > 1 and isinstance(below, Mapping) and part in map(below.get, SELECTORS):
            annotation = first  # its tag, which may be the name of a field, too: data.kind=motifs
            continue
        owners = [
            option for option in (first, *found) if option and str(part) in option.model_fields
        ]
        if isinstance(part, int) or owners or (isinstance(below, Mapping) and part in below):
            keys.append(str(part))
            if owners:
                annotation = owners[0].model_fields[str(part)].annotation
            else:
                annotation = values_of(annotation)
            below = _entry(below, part)
    return keys


def _entry(below: Any, part: int | str) -> Any:
    """Return the entry of a mapping or a list; None where there is none."""
    if isinstance(below, list | tuple):
        if isinstance(part, int) and part < len(below):
            return below[part]
        return None
    if isinstance(below, Mapping):
        return below.get(part)
    return None


def _unknown_field(
    cls: type[Spec],
    mapping: Mapping[str, Any],
    keys: Sequence[str],
    fields: Mapping[str, FieldInfo],
    value: str = "",
) -> str:
    """Return the message for a path whose last key is none of `fields`. `value` (`=3`) is the value
    given to it.
    """
    above = ".".join(keys[:-1])
    key = keys[-1]
    remedy = nearest(key, list(fields))
    meant = NAMES_ELSEWHERE.get(key, "")
    section, _, field = meant.partition(".")
    if field in (fields_at(cls, mapping, [section]) or {}):
        remedy = f"did you mean '{meant}'?"
    name = shorten(key)
    if "://" in key:  # an address, which may hold a token
        name = "..."
    name += value
    selector = next((each for each in SELECTORS if above and each in fields), None)
    if selector is None:
        path = f"{above}.{name}" if above else name
        return f"{path} is no known field; {remedy}"
    kinds = (each.model_fields for each in options(field_at(cls, mapping, keys[:-1]).annotation))
    other = next((each for each in kinds if key in each and selector in each), None)
    if other:
        remedy = f"set {above}.{selector} to {other[selector].default} first."
    return f"{above}.{selector}={fields[selector].default} has no field '{name}'; {remedy}"


def validate(cls: type[SpecT], mapping: Mapping[str, Any], before: str = "") -> SpecT:
    """Validate a resolved mapping. Raises UserError with one line a mistake, each behind the text
    `before`.
    """
    try:
        return cls.model_validate(dict(mapping))
    except ValidationError as error:
        raise UserError("\n".join(before + line for line in explain(error, cls, mapping))) from None


def explain(error: ValidationError, cls: type[Spec], mapping: Mapping[str, Any]) -> list[str]:
    """One sentence per mistake."""
    lines: dict[str, None] = {}
    for detail in error.errors():
        keys = _plain_path(detail["loc"], cls, mapping)
        annotation = field_at(cls, mapping, keys).annotation
        alternatives = [member for member in members(annotation) if member is not type(None)]
        other = WANTED if isinstance(detail.get("input"), Mapping) else MAPPING_WANTED
        # number or mapping: mistakes are those of what was written
        if 0 < len(options(annotation)) < len(alternatives) and detail["type"] in other:
            continue
        sentence = _sentence(detail, keys, cls, mapping)
        if keys[:2] == ["data", "parts"] and len(keys) > 2:  # a source's sentence names `data.path`
            part = chosen(
                values_of(field_at(cls, mapping, keys[:2]).annotation), value_at(mapping, keys[:3])
            )
            if part:
                sentence = in_part(sentence, keys[2], part)
        lines[printable_sentence(sentence)] = None
    return list(lines)


def _sentence(detail: Any, keys: Sequence[str], cls: type[Spec], mapping: Mapping[str, Any]) -> str:
    """Sentence on one of pydantic's mistakes, at the path of `keys`."""
    path = ".".join(keys)
    kind = detail["type"]
    value = format_value(detail.get("input"))
    if kind == "value_error":
        message = str(detail["ctx"]["error"])
        if "=" in message or not path or message.startswith(path):
            return message
        return f"{path}={value}: {message}"
    if kind in ("extra_forbidden", "invalid_key"):
        fields = fields_at(cls, mapping, keys[:-1]) or {}
        given = f"={value}" if kind == "extra_forbidden" else ""
        return _unknown_field(cls, mapping, keys, fields, given)
    if kind == "missing":
        return f"{path} is missing; give it a value."
    annotation = field_at(cls, mapping, keys).annotation
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        selector = str(detail["ctx"]["discriminator"]).strip("'")
        known = [str(option.model_fields[selector].default) for option in options(annotation)]
        if kind == "union_tag_not_found":
            return f"{path}.{selector} is missing; set it to one of {', '.join(known)}."
        tag = detail["ctx"]["tag"]
        return f"{path}.{selector}={tag!r} is unknown; {nearest(str(tag), known)}"
    return f"{path}={value}{_wanted(detail, annotation)}."


def _wanted(detail: Any, annotation: Any) -> str:
    """End of a sentence on a value of another type or out of bounds: what it must be."""
    kind = detail["type"]
    off = ", or null for none" if type(None) in members(annotation) else ""
    if kind in BOUNDS:
        bound = next(iter(detail["ctx"].values()))
        limit = f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
        return f" must be {BOUNDS[kind]} {limit}{off}"
    if kind in MAPPING_WANTED:
        first = next(iter(options(annotation)), None)
        names = f" ({', '.join(first.model_fields)})" if first and first.model_fields else ""
        return f" must be a mapping of fields{names}{off}"
    if kind in WANTED:
        return f" must be {WANTED[kind]}{off}"
    if kind == "too_short":
        least = detail["ctx"]["min_length"]
        return f" must hold at least {least} value{'' if least == 1 else 's'}"
    wording = detail["msg"].removeprefix("Input should be ")
    if wording != detail["msg"]:
        return f" must be {wording}{off}"
    return f": {wording}"


def spec_fields(
    spec: BaseModel, default: Any = PydanticUndefined, prefix: str = ""
) -> list[tuple[str, Any, Any]]:
    """List path, value and default of a spec's fields, in its order, parts within parts included.

    A default is what a field has where nothing sets it, `PydanticUndefined` where something must.
    `default` is the part that stands where nothing sets it, `prefix` the path above the fields.
    """
    found: list[tuple[str, Any, Any]] = []
    for name, info in type(spec).model_fields.items():
        value = getattr(spec, name)
        if default is None:
            standard = None  # the whole part is absent
        elif type(default) is type(spec) or name in ("kind", "family"):
            # the own default of a kind says nothing
            standard = getattr(default, name, PydanticUndefined)
        else:
            standard = info.get_default(call_default_factory=True, validated_data={})
        if isinstance(value, BaseModel):
            found += spec_fields(value, standard, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", value, standard))
    return found
