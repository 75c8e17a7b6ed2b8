"""Spec classes of an experiment's model, objective, sampling and data: those of its family, and of other packages."""

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from denoisers.contract import ObjectiveSpec
from denoisers.extensions import extended_objective, fully_extended_objective
from denoisers.families import AnyFamily, families, family_names, find_family
from denoisers.plugins import PluginError
from denoisers.spec_unions import kinds_of
from ditlab.errors import UserError, nearest
from ditlab.spec.composition.mixture import DataSpec, source_kinds, with_sources
from ditlab.spec.data import DigitsData
from ditlab.spec.data_sources import DATA_SOURCES, DataSource
from ditlab.spec.format_value import format_value


@dataclass(frozen=True)
class ExperimentParts:
    """The classes that differ between experiments."""

    family: AnyFamily
    objective: type[ObjectiveSpec]
    """The family's, with fields for the loss components and the time density of other packages."""
    data: tuple[type[DataSource], ...]
    """Data sources of other packages."""

    def fields(self) -> dict[str, Any]:
        """Return the fields that an experiment of these parts has, as `pydantic.create_model` takes them."""
        family = self.family
        objective: Any = self.objective
        fields: dict[str, Any] = {
            "model": (family.model, Field(description="The network.")),
            "objective": (objective, Field(default=objective(), description="The loss.")),
            "sampling": (family.sampling, Field(default=family.sampling(), description="Defaults of sampling.")),
        }
        if self.data:
            data = Field(default=DigitsData(), description="Where samples come from.")
            fields["data"] = (with_sources(self.data), data)
        return fields


def parts_for(mapping: Any) -> ExperimentParts:
    """Return the classes that a mapping names.

    Raises UserError for an unknown family, and for a part of another package whose code cannot be used.
    """
    top = mapping if isinstance(mapping, dict) else {}
    try:
        family = _family(top.get("model"))
        objective = extended_objective(family.objective, top.get("objective"))
        return ExperimentParts(family, objective, _data_sources(top.get("data")))
    except PluginError as error:
        raise UserError(str(error)) from error


def all_parts() -> list[ExperimentParts]:
    """Return the classes of every family with all parts of other packages, for the JSON schema."""
    data = tuple(DATA_SOURCES.load_all().values())
    return [ExperimentParts(each, fully_extended_objective(each.objective), data) for each in families().values()]


def _family(model: Any) -> AnyFamily:
    if not isinstance(model, dict) or model.get("family") is None:
        raise UserError(f"model.family is missing; set it to one of {', '.join(family_names())}.")
    name = model["family"]
    family = find_family(name) if isinstance(name, str) else None
    if family is None:
        hint = nearest(str(name), family_names())
        raise UserError(
            f"model.family={format_value(name)} is no known family; {hint}{'' if hint.endswith('?') else '.'} A family "
            "of another package needs that package installed here (an entry point in the group denoisers.families), or "
            "its folder denoisers/NAME on the Python path."
        )
    return family


def _data_sources(data: Any) -> tuple[type[DataSource], ...]:
    sources = [DATA_SOURCES.load(kind) for kind in source_kinds(data) if kind not in kinds_of(DataSpec)]
    return tuple(source for source in sources if source is not None)
