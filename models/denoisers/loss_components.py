"""Loss components of other packages, by name: entry points of the group `denoisers.loss_components`. No torch."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from pydantic import Field, create_model

from denoisers.contract import LossComponent, ObjectiveSpec, Spec, Weight
from denoisers.families import built_in_families
from denoisers.plugins import PluginError, PluginGroup

OTHER_METRICS = ("loss", "grad_norm", "lr", "samples_per_second")
"""Names of a step's metrics beside the components. Those of a quarter of time end in `_t0` to `_t3`."""


def new_components(objective: type[ObjectiveSpec], names: Iterable[str]) -> tuple[type[LossComponent], ...]:
    """Return the components of other packages among `names`, for an objective class; unknown names are left out.

    Raises PluginError for one whose code cannot be used, or that does not compare what the objective predicts.
    """
    weights = objective.model_fields["weights"].annotation
    own = weights.model_fields if isinstance(weights, type) and issubclass(weights, Spec) else {}
    found = []
    for name in sorted(set(names) - set(own)):
        component = LOSS_COMPONENTS.load(name)
        if component is None:
            continue
        if component.prediction != objective.component_prediction:
            takes = objective.component_prediction
            raise PluginError(
                f"objective.weights.{name} compares a {component.prediction}, and this family's loss has "
                f"{'a ' + takes if takes else 'no prediction that components of other packages compare'}; remove it."
            )
        found.append(component)
    return tuple(found)


def components_of(weights: Spec, base: type[Spec]) -> dict[str, LossComponent]:
    """Return the components of other packages that `weights` has beside the fields of `base`, by name."""
    found = {}
    for name in type(weights).model_fields:
        if name not in base.model_fields:
            component = LOSS_COMPONENTS.load(name)
            assert component is not None, f"there is no loss component {name}"
            found[name] = component()
    return found


@cache
def with_components(objective: type[ObjectiveSpec], components: tuple[type[LossComponent], ...]) -> type[ObjectiveSpec]:
    """Return the objective class whose `weights` have a field for each component, 0 by default."""
    if not components:
        return objective
    field = objective.model_fields["weights"]
    weights: Any = field.annotation
    fields: dict[str, Any] = {
        each.name: (Weight, Field(default=0.0, description=_summary(each))) for each in components
    }
    extended: Any = create_model(weights.__name__, __base__=weights, __doc__=weights.__doc__, **fields)
    default = extended(**field.default.model_dump())
    changes: dict[str, Any] = {"weights": (extended, Field(default=default, description=field.description))}
    return create_model(objective.__name__, __base__=objective, __doc__=objective.__doc__, **changes)


def _summary(component: type[LossComponent]) -> str:
    lines = (component.__doc__ or "").strip().splitlines()
    return f"Weight of the loss component {component.name}" + (f": {lines[0]}" if lines else ".")


def _check(name: str, component: Any) -> type[LossComponent]:
    if not (isinstance(component, type) and issubclass(component, LossComponent)):
        raise ValueError(f"it is {component!r}, not a subclass of denoisers.contract.LossComponent")
    if component.name != name:
        raise ValueError(f"its name is '{component.name}', which must be '{name}'")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or hasattr(Spec, name):
        raise ValueError(f"'{name}' cannot be a field; use letters, digits and _, beginning with a letter")
    if name in OTHER_METRICS or re.fullmatch(r".*_t\d", name):
        raise ValueError(f"'{name}' is the name of another metric")
    return component


def _built_in() -> set[str]:
    """Return the weights of every family of this package."""
    return {name for family in built_in_families() for name in type(family.objective().weights).model_fields}


LOSS_COMPONENTS: PluginGroup[type[LossComponent]] = PluginGroup(
    "denoisers.loss_components", "loss component", _check, reserved=_built_in
)
