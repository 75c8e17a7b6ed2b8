"""The JSON schema of experiments, for editors: one alternative a family."""

from typing import Any

from pydantic import TypeAdapter

from denoisers.families import families
from ditlab.spec.experiment import experiment_class


def experiment_schema() -> dict[str, Any]:
    """JSON schema (2020-12). A file may leave out what its `extends` parent gives."""
    classes = tuple(experiment_class(family) for family in families().values())
    union: Any = classes[0]
    for cls in classes[1:]:
        union = union | cls
    schema = _loosen(TypeAdapter(union).json_schema())
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "DiTLab experiment"
    for cls in classes:
        definition = schema["$defs"][cls.__name__]
        definition["properties"]["extends"] = {
            "type": "string",
            "description": "A parent file, relative to this one: mappings merge, lists replace, later wins.",
        }
        definition["anyOf"] = [{"required": ["extends"]}, {"required": definition.pop("required")}]
    return schema


def _loosen(schema: Any) -> Any:
    """Unions by `kind` as `anyOf`: a file may leave the kind to its parent, and then several alternatives match."""
    if isinstance(schema, list):
        return [_loosen(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {"anyOf" if key == "oneOf" else key: _loosen(value) for key, value in schema.items()}
