"""Specs as notebooks show them: what differs from the defaults first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from markupsafe import Markup
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from ditlab.notebook_html import card, code, fold, shown, table

MOST_FIELDS = 400
"""Rows of a table; a spec of more fields is one that a program wrote."""
_SHOWN_APART = ("name", "base", "fixed", "space")
_CHOOSING = ("kind", "family")
"""Fields that choose the class of a part: they have a default of their own, which says nothing."""


def experiment_card(spec: BaseModel, name: str, about: str) -> Markup:
    """Fields that differ from the defaults, and all fields by section on request."""
    fields = [field for field in spec_fields(spec) if field.path != "name"]
    sections = [
        fold(_summary(section, own), field_list(own))
        for section, own in ((key, list(group)) for key, group in groupby(fields, lambda field: field.section))
    ]
    return card(name, about, [differing_table(fields), fold("all fields", Markup("").join(sections))])


def differing_table(fields: Sequence[SpecField]) -> Markup:
    """The fields that differ from the defaults, a row each."""
    differing = [field for field in fields if field.differs]
    caption = f"{len(differing)} of {len(fields)} fields {'differs' if len(differing) == 1 else 'differ'} from the "
    rows = [[field.path, *field.texts()] for field in differing[:MOST_FIELDS]]
    if left := len(differing) - len(rows):
        rows.append([f"and {left:,} more", "", ""])
    return table(["field", "value", "default"], rows, f"{caption}defaults:")


def field_list(fields: Sequence[SpecField]) -> Markup:
    """A line a field: path, value, and its meaning."""
    lines = []
    for field in fields[:MOST_FIELDS]:
        line = Markup("<code>{}</code>: <b>{}</b>" if field.differs else "<code>{}</code>: {}")
        meaning = Markup("<br><small>{}</small>").format(shown(field.meaning)) if field.meaning else ""
        lines.append(Markup("<li>{}{}</li>").format(line.format(shown(field.path), shown(field.texts()[0])), meaning))
    if left := len(fields) - len(lines):
        lines.append(Markup("<li>and {:,} more</li>").format(left))
    return Markup("<ul>{}</ul>").format(Markup("").join(lines))


def _summary(section: str, fields: Sequence[SpecField]) -> str:
    differing = sum(field.differs for field in fields)
    number = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
    return f"{section} ({number}, {differing} set)" if differing else f"{section} ({number})"


def sweep_card(sweep: BaseModel, base: Mapping[str, Any], fixed: Mapping[str, Any], axes: Mapping[str, Any]) -> Markup:
    """Axes, fixed fields, and the rest of the sweep; its base on request."""
    fields = [field for field in spec_fields(sweep) if field.section not in _SHOWN_APART]
    rows = [[path, *_axis(axis)] for path, axis in list(axes.items())[:MOST_FIELDS]]
    parts = [table(["axis", "kind", "values", "only when"], rows)]
    if fixed:
        pairs = [[path, value_text(value)] for path, value in list(fixed.items())[:MOST_FIELDS]]
        parts.append(table(["field of every trial", "value"], pairs))
    parts.append(differing_table(fields))
    lines = "\n".join(f"{key}: {value_text(value)}" for key, value in base.items())
    parts.append(fold(f"base: {base.get('name', '')}", code(lines)))
    parts.append(fold("all fields", field_list(fields)))
    return card(getattr(sweep, "name", ""), f"sweep over {len(axes)} axes", parts)


def _axis(axis: Any) -> tuple[str, str, str]:
    """Kind, values and condition of an axis."""
    values = axis.model_dump(mode="json", serialize_as_any=True, exclude_none=True)
    kind, when = values.pop("kind", ""), values.pop("when", None)
    if set(values) == {"values"}:
        text = value_text(values["values"])
    elif {"low", "high"} <= set(values):
        rest = "".join(f", {name} {value_text(value)}" for name, value in values.items() if name not in ("low", "high"))
        text = f"{value_text(values['low'])} to {value_text(values['high'])}{rest}"
    else:
        text = value_text(values)
    return kind, text, value_text(when) if when else ""


@dataclass(frozen=True)
class SpecField:
    """One field without fields below it."""

    path: str
    value: Any
    default: Any
    """The value that it has where nothing sets it; `PydanticUndefined` where something must."""
    meaning: str

    @property
    def differs(self) -> bool:
        """True if the value is not the default, or there is none."""
        return bool(self.default is PydanticUndefined or self.value != self.default)

    @property
    def section(self) -> str:
        """The part of the spec that the field belongs to."""
        return self.path.partition(".")[0]

    def texts(self, write: Callable[[Any], str] | None = None, required: str = "") -> tuple[str, str]:
        """Value and default as a person reads them, by `write` (None: nearly as YAML); `required` for no default."""
        write = write or value_text
        return write(self.value), required if self.default is PydanticUndefined else write(self.default)


def spec_fields(spec: BaseModel) -> list[SpecField]:
    """List the fields of a spec, in its order, parts within parts included."""
    return list(_fields(spec, PydanticUndefined, ""))


def value_text(value: Any) -> str:
    """A value in one line, nearly as YAML writes it."""
    return value if isinstance(value, str) else json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)


def _fields(spec: BaseModel, default: Any, prefix: str) -> Iterator[SpecField]:
    """Fields below `prefix`; `default` is the part that stands there where nothing sets it."""
    for name, info in type(spec).model_fields.items():
        value, standard = getattr(spec, name), _standard(spec, default, name, info)
        if isinstance(value, BaseModel):
            yield from _fields(value, standard, f"{prefix}{name}.")
        else:
            yield SpecField(f"{prefix}{name}", value, standard, " ".join((info.description or "").split()))


def _standard(spec: BaseModel, default: Any, name: str, info: FieldInfo) -> Any:
    """Value of a field where nothing sets it."""
    if default is None:
        return None  # the whole part is left out
    if type(default) is type(spec):
        return getattr(default, name)
    if name in _CHOOSING:
        return getattr(default, name, PydanticUndefined)
    return info.get_default(call_default_factory=True, validated_data={})
