"""Fields of a spec by dotted path, each with its default and its meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

_CHOOSING = ("kind", "family")
"""Fields that choose the class of a part: they have a default of their own, which says nothing."""


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

    def texts(self) -> tuple[str, str]:
        """Value and default as a person reads them; empty for no default."""
        return value_text(self.value), "" if self.default is PydanticUndefined else value_text(self.default)


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
