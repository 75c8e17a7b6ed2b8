"""The JSON schemas of experiments, one alternative a family, and of sweeps: for editors."""

from functools import reduce
from operator import or_
from typing import Any

from pydantic import TypeAdapter

from ditlab.spec.experiment import experiment_class
from ditlab.spec.plugins import all_added_parts
from ditlab.spec.sweep import sweep_class
from ditlab_models.contract import Spec
from ditlab_models.extensions import fully_extended_objective
from ditlab_models.families import families


def experiment_schema() -> dict[str, Any]:
    """JSON schema (2020-12). A file may leave out what its `extends` parent gives."""
    added = all_added_parts()
    classes: list[Any] = [
        experiment_class(family, fully_extended_objective(objective), added)
        for family in families().values()
        for objective in family.objectives().values()
    ]
    schema = _finished(TypeAdapter(reduce(or_, classes)).json_schema(), "DiTLab experiment")
    for cls in classes:
        _allow_parent(schema["$defs"][cls.__name__])
    return schema


def sweep_schema() -> dict[str, Any]:
    """JSON schema (2020-12). A file may leave out what its `extends` parent gives, and name its
    `base` by a path.
    """
    schema = file_schema(sweep_class(), "DiTLab sweep")
    base = schema["properties"]["base"]
    written_out = {key: base.pop(key) for key in ("type", "additionalProperties")}
    base["anyOf"] = [{"type": "string", "minLength": 1}, written_out]
    return schema


def file_schema(spec: type[Spec], title: str) -> dict[str, Any]:
    """JSON schema (2020-12) of files that describe a spec. A file may leave out what its `extends`
    parent gives.
    """
    schema = _finished(spec.model_json_schema(), title)
    _allow_parent(schema)
    return schema


def _finished(schema: dict[str, Any], title: str) -> dict[str, Any]:
    return {
        **_loosen(schema),
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
    }


def _allow_parent(definition: dict[str, Any]) -> None:
    definition["properties"]["extends"] = {
        "type": "string",
        "description": (
            "A parent file, relative to this one: mappings merge, lists replace, later wins."
        ),
    }
    definition["anyOf"] = [{"required": ["extends"]}, {"required": definition.pop("required")}]


def _loosen(schema: Any) -> Any:
    """Unions by `kind` as `anyOf`: a file may leave the kind to its parent, and then several
    alternatives match.
    """
    if isinstance(schema, list):
        return [_loosen(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {"anyOf" if key == "oneOf" else key: _loosen(value) for key, value in schema.items()}
