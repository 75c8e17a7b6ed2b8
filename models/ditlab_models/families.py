"""Model families by name. No central list, no torch.

A family is a folder `ditlab_models/NAME/` on the Python path whose `family.py` defines `FAMILY`, or
an entry point NAME of the group `ditlab.families` in any installed package, which names such an
object.
"""

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import ditlab_models
from ditlab_models.contract import Family, ModelSpec
from ditlab_models.plugins import BUILT_IN, PluginGroup, plugins_in_folders, warn_of_former_part

AnyFamily = Family[Any, Any, Any]


def families() -> dict[str, AnyFamily]:
    """Return every family by name, sorted. Warns of those whose code cannot be used."""
    return FAMILIES.load_all()


def family_names() -> list[str]:
    """Return the names of all families, sorted, without importing their code."""
    return FAMILIES.names()


def find_family(name: str) -> AnyFamily | None:
    """Return the family of a name; None where there is none. Raises PluginError where its code
    cannot be used.
    """
    family = FAMILIES.load(name)
    if family is None:
        _warn_of_former_folder(name)
    return family


def _warn_of_former_folder(name: str) -> None:
    """Warn of a folder `denoisers/NAME` on the Python path, where families lay before."""
    for place in sys.path:
        folder = Path(place) / "denoisers" / name
        with suppress(OSError, ValueError):  # a name that no file can have
            if (folder / "family.py").is_file():
                message = (
                    f"folder {folder} is not read, as it lies below denoisers; name it "
                    f"ditlab_models/{name}"
                )
                warn_of_former_part(str(folder), message)


def family_of(model: ModelSpec) -> AnyFamily:
    """Return the family of a model spec."""
    family = find_family(model.family)
    assert family is not None, f"there is no family {model.family}"
    return family


def built_in_families() -> list[AnyFamily]:
    """Return the families of this package."""
    found = [find_family(name) for name in _built_in()]
    return [family for family in found if family]


_folders = partial(plugins_in_folders, ditlab_models, "family", "FAMILY")


def _check(name: str, family: Any) -> AnyFamily:
    if not isinstance(family, Family):
        raise ValueError(
            f"it is a {type(family).__name__}, not an instance of ditlab_models.contract.Family"
        )
    if family.name != name or family.model.model_fields["family"].default != name:
        raise ValueError(
            f"its name is '{family.name}' and its model.family "
            f"'{family.model.model_fields['family'].default}', which must both be '{name}'"
        )
    family.objective()  # its fields have defaults
    family.sampling()
    return family


def _built_in() -> list[str]:
    return [plugin.name for plugin in _folders() if plugin.package == BUILT_IN]


FAMILIES: PluginGroup[AnyFamily] = PluginGroup(
    "ditlab.families", "model family", _check, folders=_folders, reserved=_built_in
)
