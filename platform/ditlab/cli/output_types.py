"""Shapes that several commands print under `--json`, and the JSON schema of each command's object:
`ditlab schema --result COMMAND`. The types stand in `results.py` of each folder of commands.

A key that is `NotRequired` is there in some cases only; NaN and infinities are null. Tests hold
every object that a command prints to its type, with no key too many. A later version may add keys.
"""

from pkgutil import resolve_name
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from ditlab.errors import UserError, nearest
from ditlab.parts import all_parts

Numbers = dict[str, float | None]
"""Values by name: metrics under their MLflow names."""

Device = Literal["GPU", "core"]

Change = TypedDict("Change", {"was": Any, "is": Any})

Changes = Annotated[
    dict[str, Change], Field(description="Fields that `--quick` has changed, by dotted path.")
]


class ErrorOutput(TypedDict):
    """Object of a command that fails, whose sentence is on standard error as well."""

    status: Literal["error"]
    kind: str
    """user_error: the input is wrong. budget: nothing was started, as a budget has too little left.
    interrupted: by a signal. storage: a disk refuses. Else the class of a run's failure: crash,
    diverged, lost_worker ..."""
    message: str
    """Sentences, one a line: the field or option, its value and the remedy."""
    exit_code: int


class IntervalOutput(TypedDict):
    """Mean over seeds, and the interval that holds it with this confidence; null ends with one
    value.
    """

    mean: float | None
    low: float | None
    high: float | None
    num: int
    std: float | None
    confidence: float
    num_other: int
    """Values of the second group where a difference is not one of pairs; else 0."""
    num_together: int
    """Intervals that hold together with this confidence; 1: this one alone."""


class FilesOutput(TypedDict):
    """Files that a command wrote."""

    files: list[str]


def result_types() -> dict[str, Any]:
    """Return the type of each command's object, by the command's words; `data import` stands for
    each kind of data.
    """
    found: dict[str, Any] = {}
    for parts in all_parts():
        types = resolve_name(parts.results) if parts.results else {}
        for command, type_ in types.items():
            found[command] = found[command] | type_ if command in found else type_
    return found


def result_type(command: str) -> Any:
    """Return the type of the last line that a command prints. Raises UserError for an unknown
    command.
    """
    types = result_types()
    if command not in types:
        raise UserError(
            f"--result {command}: no command is called so; {nearest(command, list(types))}"
        )
    return types[command] | ErrorOutput


def result_schema(command: str) -> dict[str, Any]:
    """JSON schema (2020-12) of the object that a command prints. Raises UserError for an unknown
    command.
    """
    dialect = "https://json-schema.org/draft/2020-12/schema"
    found = TypeAdapter(
        result_type(command), config=ConfigDict(use_attribute_docstrings=True, strict=True)
    )
    return {"$schema": dialect, "title": f"ditlab {command} --json", **found.json_schema()}
