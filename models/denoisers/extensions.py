"""Objective classes with the loss components and time densities of other packages. No torch."""

from collections.abc import Mapping
from typing import Any

from denoisers.contract import ObjectiveSpec
from denoisers.loss_components import LOSS_COMPONENTS, new_components, with_components
from denoisers.plugins import Plugin
from denoisers.spec_unions import kinds_of
from denoisers.time_densities import TIME_DENSITIES, draws_times, new_densities, with_densities


def extended_objective(objective: type[ObjectiveSpec], mapping: Any) -> type[ObjectiveSpec]:
    """Return the objective class with fields for the parts of other packages that `mapping`, its YAML, names.

    Without any, this is the class itself. Raises PluginError for a part whose code cannot be used.
    """
    weights, time = _below(mapping, "weights"), _below(mapping, "time")
    components = new_components(objective, [name for name in weights if isinstance(name, str)])
    return with_components(with_densities(objective, new_densities(objective, time.get("kind"))), components)


def fully_extended_objective(objective: type[ObjectiveSpec]) -> type[ObjectiveSpec]:
    """Return the objective class with fields for all parts of other packages, for its JSON schema."""
    densities = tuple(TIME_DENSITIES.load_all().values()) if draws_times(objective) else ()
    components = LOSS_COMPONENTS.load_all().values() if objective.component_prediction else ()
    fitting = tuple(each for each in components if each.prediction == objective.component_prediction)
    return with_components(with_densities(objective, densities), fitting)


def added_parts(objective: type[ObjectiveSpec], mapping: Any) -> list[Plugin]:
    """Return the parts of other packages that `mapping`, the objective's YAML, names; `objective` is the family's own
    class."""
    own: Any = objective.model_fields["weights"].annotation
    found = [LOSS_COMPONENTS.find(name) for name in _below(mapping, "weights") if name not in own.model_fields]
    kind = _below(mapping, "time").get("kind")
    if draws_times(objective) and kind not in kinds_of(objective.model_fields["time"].annotation):
        found.append(TIME_DENSITIES.find(str(kind)))
    return [plugin for plugin in found if plugin]


def _below(mapping: Any, key: str) -> Mapping[str, Any]:
    below = mapping.get(key) if isinstance(mapping, Mapping) else None
    return below if isinstance(below, Mapping) else {}
