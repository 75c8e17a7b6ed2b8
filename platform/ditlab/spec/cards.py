"""Specs as notebooks show them: what differs from the defaults first."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from markupsafe import Markup
from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from ditlab.notebook_html import table


def spec_fields(spec: BaseModel, default: Any = PydanticUndefined, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """List path, value and default of a spec's fields, in its order, parts within parts included.

    A default is what a field has where nothing sets it, `PydanticUndefined` where something must. `default` is the part
    that stands where nothing sets it, `prefix` the path above the fields.
    """
    found: list[tuple[str, Any, Any]] = []
    for name, info in type(spec).model_fields.items():
        value = getattr(spec, name)
        if default is None:
            standard = None  # the whole part is left out
        elif type(default) is type(spec) or name in ("kind", "family"):  # whose own default says nothing
            standard = getattr(default, name, PydanticUndefined)
        else:
            standard = info.get_default(call_default_factory=True, validated_data={})
        is_part = isinstance(value, BaseModel)
        found += spec_fields(value, standard, f"{prefix}{name}.") if is_part else [(f"{prefix}{name}", value, standard)]
    return found


def differing_fields(spec: BaseModel, without: Collection[str] = ("name",)) -> Markup:
    """The fields that differ from the defaults, a row each; but for those of the sections `without`."""
    fields = [field for field in spec_fields(spec) if field[0].partition(".")[0] not in without]
    rows = [
        [path, value_text(value), "" if default is PydanticUndefined else value_text(default)]
        for path, value, default in fields
        if value != default
    ]
    return table(["field", "value", "default"], rows, f"{len(rows)} of {len(fields)} fields differ from the defaults:")


def value_text(value: Any) -> str:
    """A value in one line, nearly as YAML writes it."""
    return value if isinstance(value, str) else json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)
