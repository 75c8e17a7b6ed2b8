"""Model families by name: every `denoisers/NAME/family.py` on the package's path. No central list, no torch."""

import importlib
from functools import cache
from pathlib import Path
from typing import Any

import denoisers
from denoisers.contract import Family, ModelSpec

AnyFamily = Family[Any, Any, Any]


@cache
def families() -> dict[str, AnyFamily]:
    """Return every family by name, sorted."""
    names = {module.parent.name for folder in denoisers.__path__ for module in Path(folder).glob("*/family.py")}
    found = {}
    for name in sorted(names):
        family = importlib.import_module(f"denoisers.{name}.family").FAMILY
        assert family.name == name, f"denoisers/{name}/family.py calls its family '{family.name}'"
        found[name] = family
    return found


def family_of(model: ModelSpec) -> AnyFamily:
    """Return the family of a model spec."""
    return families()[model.family]
