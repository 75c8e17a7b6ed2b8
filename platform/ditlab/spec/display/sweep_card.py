"""A sweep as notebooks show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup
from pydantic import BaseModel

from ditlab.notebook_html import card, code, fold, table
from ditlab.spec.display.experiment_card import MOST_FIELDS, differing_table, field_list
from ditlab.spec.display.spec_fields import spec_fields, value_text

_SHOWN_APART = ("name", "base", "fixed", "space")


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
