"""Finds the model families: every `denoisers/NAME/spec.py` on the package's path. No central list, no torch."""

import importlib
from functools import cache
from pathlib import Path

import denoisers
from denoisers.contract import Family


@cache
def families() -> dict[str, Family]:
    """Every family by name, sorted."""
    names = {spec.parent.name for folder in denoisers.__path__ for spec in Path(folder).glob("*/spec.py")}
    found = {}
    for name in sorted(names):
        family = importlib.import_module(f"denoisers.{name}.spec").FAMILY
        assert family.name == name, f"denoisers/{name}/spec.py calls its family '{family.name}'"
        found[name] = family
    return found
