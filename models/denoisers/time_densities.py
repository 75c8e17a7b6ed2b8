"""Time densities of other packages, by kind: entry points of the group `denoisers.time_densities`. No torch."""

from functools import cache
from typing import Any

from pydantic import Field, create_model

from denoisers.contract import ObjectiveSpec, TimeDensity
from denoisers.families import built_in_families
from denoisers.plugins import PluginGroup
from denoisers.spec_unions import check_kind, kinds_of, with_kinds


def draws_times(objective: type[ObjectiveSpec]) -> bool:
    """Return True if the objective has a time density, `time`, that can be one of several kinds."""
    field = objective.model_fields.get("time")
    return field is not None and any(issubclass(kind, TimeDensity) for kind in kinds_of(field.annotation).values())


def new_densities(objective: type[ObjectiveSpec], kind: Any) -> tuple[type[TimeDensity], ...]:
    """Return the density of another package, by kind; () where the objective has the kind itself, or there is none.

    Raises PluginError for one whose code cannot be used.
    """
    if not draws_times(objective) or not isinstance(kind, str):
        return ()
    if kind in kinds_of(objective.model_fields["time"].annotation):
        return ()
    density = TIME_DENSITIES.load(kind)
    return () if density is None else (density,)


@cache
def with_densities(objective: type[ObjectiveSpec], densities: tuple[type[TimeDensity], ...]) -> type[ObjectiveSpec]:
    """Return the objective class whose `time` may be one of the densities as well."""
    if not densities:
        return objective
    field = objective.model_fields["time"]
    time = Field(default=field.default, description=field.description)
    changes: dict[str, Any] = {"time": (with_kinds(field.annotation, densities), time)}
    return create_model(objective.__name__, __base__=objective, __doc__=objective.__doc__, **changes)


def _check(kind: str, density: Any) -> type[TimeDensity]:
    check_kind(kind, density, TimeDensity)
    found: type[TimeDensity] = density
    return found


def _built_in() -> set[str]:
    """Return the kinds of every family of this package."""
    objectives = [family.objective for family in built_in_families()]
    return {kind for each in objectives if draws_times(each) for kind in kinds_of(each.model_fields["time"].annotation)}


TIME_DENSITIES: PluginGroup[type[TimeDensity]] = PluginGroup(
    "denoisers.time_densities", "time density", _check, reserved=_built_in
)
