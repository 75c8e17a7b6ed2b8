"""Specs as notebooks show them: what differs from the defaults first."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from ditlab.notebook_html import table


@dataclass(frozen=True)
class SpecField:
    """One field without fields below it."""

    path: str
    value: Any
    default: Any
    """The value that it has where nothing sets it; `PydanticUndefined` where something must."""

    @property
    def differs(self) -> bool:
        """True if the value is not the default, or there is none."""
        return bool(self.default is PydanticUndefined or self.value != self.default)

    def texts(self, write: Callable[[Any], str] | None = None, required: str = "") -> tuple[str, str]:
        """Value and default as a person reads them, by `write` (None: nearly as YAML); `required` for no default."""
        write = write or value_text
        return write(self.value), required if self.default is PydanticUndefined else write(self.default)


def spec_fields(spec: BaseModel, default: Any = PydanticUndefined, prefix: str = "") -> list[SpecField]:
    """List the fields of a spec, in its order, parts within parts included.

    `default` is the part that stands where nothing sets it, `prefix` the path above the fields.
    """
    found = []
    for name, info in type(spec).model_fields.items():
        value = getattr(spec, name)
        if default is None:
            standard = None  # the whole part is left out
        elif type(default) is type(spec) or name in ("kind", "family"):  # whose own default says nothing
            standard = getattr(default, name, PydanticUndefined)
        else:
            standard = info.get_default(call_default_factory=True, validated_data={})
        if isinstance(value, BaseModel):
            found += spec_fields(value, standard, f"{prefix}{name}.")
        else:
            found.append(SpecField(f"{prefix}{name}", value, standard))
    return found


def differing_fields(spec: BaseModel, without: Collection[str] = ("name",)) -> Markup:
    """The fields that differ from the defaults, a row each; but for those of the sections `without`."""
    fields = [field for field in spec_fields(spec) if field.path.partition(".")[0] not in without]
    rows = [[field.path, *field.texts()] for field in fields if field.differs]
    return table(["field", "value", "default"], rows, f"{len(rows)} of {len(fields)} fields differ from the defaults:")


def value_text(value: Any) -> str:
    """A value in one line, nearly as YAML writes it."""
    return value if isinstance(value, str) else json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)
