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
    schema = TypeAdapter(union).json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "DiTLab experiment"
    for name, definition in schema["$defs"].items():
        if name.endswith("-experiment") or "Experiment" in name:
            definition["properties"]["extends"] = {
                "type": "string",
                "description": "A parent file, relative to this one: mappings merge, lists replace, later wins.",
            }
    return schema
