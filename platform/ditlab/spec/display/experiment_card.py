"""An experiment as notebooks show it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from markupsafe import Markup
from pydantic import BaseModel

from ditlab.notebook_html import card, fold, shown, table
from ditlab.spec.display.spec_fields import SpecField, spec_fields

MOST_FIELDS = 400
"""Rows of a table; a spec of more fields is one that a program wrote."""


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
