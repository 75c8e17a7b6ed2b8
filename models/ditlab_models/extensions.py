"""Parts that other packages add to specs: loss components and time densities, by name. No torch.

They are entry points of the groups `ditlab.loss_components` and `ditlab.time_densities`. The field
`kind` names the member of a union of specs.
"""

from __future__ import annotations

import re
import types
from collections.abc import Collection, Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import Field, create_model

from ditlab_models.contract import (
    LossComponent,
    ObjectiveSpec,
    SamplingSpec,
    Spec,
    TimeDensity,
    Weight,
)
from ditlab_models.families import built_in_families
from ditlab_models.plugins import Plugin, PluginError, PluginGroup

SpecT = TypeVar("SpecT", bound=Spec)
OTHER_METRICS = ("loss", "grad_norm", "lr", "samples_per_second")
"""Names of a step's metrics beside the components. Those of a quarter of time end in `_t0` to
`_t3`.
"""


def extended_objective(objective: type[ObjectiveSpec], mapping: Any) -> type[ObjectiveSpec]:
    """Return the objective class with fields for the parts of other packages that `mapping`, its
    YAML, names.

    Names that nobody knows are skipped. Raises PluginError for a part that cannot be used, or
    compares something else.
    """
    own: Any = objective.model_fields["weights"].annotation
    names = sorted(
        name
        for name in _below(mapping, "weights")
        if isinstance(name, str) and name not in own.model_fields
    )
    found = [LOSS_COMPONENTS.load(name) for name in names]
    components = tuple(component for component in found if component)
    takes = objective.component_prediction
    for each in components:
        if each.prediction != takes:
            taken = f"a {takes}"
            if not takes:
                taken = "no prediction that components of other packages compare"
            raise PluginError(
                f"objective.weights.{each.name} compares a {each.prediction}, and this family's "
                f"loss has {taken}; remove it."
            )
    kind = _below(mapping, "time").get("kind")
    density = None
    if isinstance(kind, str) and _takes_density(objective, kind):
        density = TIME_DENSITIES.load(kind)
    densities = (density,) if density else ()
    return _extended(objective, components, densities)


def fully_extended_objective(objective: type[ObjectiveSpec]) -> type[ObjectiveSpec]:
    """Return the objective class with fields for all parts of other packages, for its JSON
    schema.
    """
    takes = objective.component_prediction
    components = []
    if takes:
        components = [
            each for each in LOSS_COMPONENTS.load_all().values() if each.prediction == takes
        ]
    densities = TIME_DENSITIES.load_all().values() if _density_kinds(objective) else ()
    return _extended(objective, tuple(components), tuple(densities))


def added_parts(objective: type[ObjectiveSpec], mapping: Any) -> list[Plugin]:
    """Return the parts of other packages that `mapping`, the objective's YAML, names, beside the
    family's own class.
    """
    own: Any = objective.model_fields["weights"].annotation
    found = [
        LOSS_COMPONENTS.find(name)
        for name in _below(mapping, "weights")
        if name not in own.model_fields
    ]
    kind = _below(mapping, "time").get("kind")
    if _takes_density(objective, kind):
        found.append(TIME_DENSITIES.find(str(kind)))
    return [plugin for plugin in found if plugin]


def _below(mapping: Any, key: str) -> Mapping[str, Any]:
    """Return the mapping below a key of YAML; {} where there is none."""
    if not isinstance(mapping, Mapping):
        return {}
    below = mapping.get(key)
    return below if isinstance(below, Mapping) else {}


def components_of(weights: Spec, base: type[Spec]) -> dict[str, LossComponent]:
    """Return the components of other packages that `weights` has beside the fields of `base`, by
    name.
    """
    found = {}
    for name in type(weights).model_fields:
        if name not in base.model_fields:
            component = LOSS_COMPONENTS.load(name)
            assert component is not None, f"there is no loss component {name}"
            found[name] = component()
    return found


@cache
def _extended(
    objective: type[ObjectiveSpec],
    components: tuple[type[LossComponent], ...],
    densities: tuple[type[TimeDensity], ...],
) -> type[ObjectiveSpec]:
    """Return the objective class whose `weights` have the components, 0 by default, and whose
    `time` the densities.
    """
    changes: dict[str, Any] = {}
    if densities:
        field = objective.model_fields["time"]
        time = Field(default=field.default, description=field.description)
        changes["time"] = (with_kinds(field.annotation, densities), time)
    if components:
        field = objective.model_fields["weights"]
        weights: Any = field.annotation
        added: dict[str, Any] = {}
        for each in components:
            first, *_ = [*(each.__doc__ or "").strip().splitlines(), ""]
            about = f"Weight of the loss component {each.name}."
            if first:
                about = f"Weight of the loss component {each.name}: {first}"
            added[each.name] = (Weight, Field(default=0.0, description=about))
        extended: Any = create_model(
            weights.__name__, __base__=weights, __doc__=weights.__doc__, **added
        )
        default = extended(**field.default.model_dump())
        changes["weights"] = (extended, Field(default=default, description=field.description))
    if not changes:
        return objective
    return create_model(
        objective.__name__, __base__=objective, __doc__=objective.__doc__, **changes
    )


def _check_component(name: str, component: Any) -> type[LossComponent]:
    if not (isinstance(component, type) and issubclass(component, LossComponent)):
        raise ValueError(
            f"it is {component!r}, not a subclass of ditlab_models.contract.LossComponent"
        )
    if component.name != name:
        raise ValueError(f"its name is '{component.name}', which must be '{name}'")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or hasattr(Spec, name):
        raise ValueError(
            f"'{name}' cannot be a field; use letters, digits and _, beginning with a letter"
        )
    if name in OTHER_METRICS or re.fullmatch(r".*_t\d", name):
        raise ValueError(f"'{name}' is the name of another metric")
    return component


def _own_components() -> set[str]:
    """Return the names of the loss components of this package's families."""
    names = set[str]()
    for family in built_in_families():
        for objective in family.objectives().values():
            names |= set(type(objective().weights).model_fields)
    return names


LOSS_COMPONENTS: PluginGroup[type[LossComponent]] = PluginGroup(
    "ditlab.loss_components",
    "loss component",
    _check_component,
    reserved=_own_components,
)


def _density_kinds(objective: type[ObjectiveSpec]) -> dict[str, type[Spec]]:
    """Return the kinds of the objective's time density, `time`; {} where it has none that could be
    another kind.
    """
    field = objective.model_fields.get("time")
    kinds = {} if field is None else kinds_of(field.annotation)
    if any(issubclass(kind, TimeDensity) for kind in kinds.values()):
        return kinds
    return {}


def _takes_density(objective: type[ObjectiveSpec], kind: Any) -> bool:
    """Return True if a density of this kind would be another package's."""
    kinds = _density_kinds(objective)
    return bool(kinds) and kind not in kinds


def _own_densities() -> set[str]:
    """Return the kinds of time density of this package's families."""
    kinds = set[str]()
    for family in built_in_families():
        kinds |= set(_density_kinds(family.objective))
    return kinds


TIME_DENSITIES: PluginGroup[type[TimeDensity]] = PluginGroup(
    "ditlab.time_densities",
    "time density",
    lambda kind, density: check_kind(kind, density, TimeDensity),
    reserved=_own_densities,
)


def kinds_of(annotation: Any) -> dict[str, type[Spec]]:
    """Return the spec classes of an annotation by their kind; {} for one that is no union of such
    classes.
    """
    if get_origin(annotation) is Annotated:
        return kinds_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        found = dict[str, type[Spec]]()
        for member in get_args(annotation):
            found |= kinds_of(member)
        return found
    if (
        isinstance(annotation, type)
        and issubclass(annotation, Spec)
        and "kind" in annotation.model_fields
    ):
        return {str(annotation.model_fields["kind"].default): annotation}
    return {}


def with_kinds(annotation: Any, specs: Collection[type[Spec]]) -> Any:
    """Return the annotation of a union with further classes; one of a kind that is there takes that
    one's place.
    """
    found = kinds_of(annotation)
    for spec in specs:
        found |= kinds_of(spec)
    kinds: Any = Union[(*found.values(),)]
    return Annotated[kinds, Field(discriminator="kind")]


def with_solvers(sampling: type[SamplingSpec], added: Mapping[str, str]) -> type[SamplingSpec]:
    """Return a sampling spec whose `solver` may be one of `added` too; the spec itself where it
    takes none.
    """
    if not added or not sampling.takes_solvers:
        return sampling
    field = sampling.model_fields["solver"]
    names: Any = Literal[(*get_args(field.annotation), *added)]
    extended: Any = create_model(
        sampling.__name__, __base__=sampling, __doc__=sampling.__doc__, solver=(names, field)
    )
    extended.added_solvers = added
    return extended


def check_kind(kind: str, spec: Any, base: type[SpecT]) -> type[SpecT]:
    """Return `spec`. Raises ValueError if it is no subclass of `base` with this kind."""
    if not (isinstance(spec, type) and issubclass(spec, base)):
        raise ValueError(f"it is {spec!r}, not a subclass of {base.__module__}.{base.__name__}")
    field = spec.model_fields["kind"]
    if field.default != kind or get_args(field.annotation) != (kind,):
        raise ValueError(f"its kind must be `kind: Literal[{kind!r}] = {kind!r}`")
    return spec
