"""Packages beside DiTLab that an experiment's parts come from, and data sources of such packages by
kind.

Data sources are entry points of the group `ditlab.data_sources`.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import create_model

from ditlab.errors import UserError
from ditlab.parts import ADDONS, OF_ADDONS, absent_part, find_kind, load_part, named
from ditlab.spec.data import FullOrderSpec, HoldOut, HoldOutClasses, OrderSpec
from ditlab.spec.mixture import DataSpec, source_kinds
from ditlab.spec.optimization import Optimizer, OptimizerSpec, Schedule, ScheduleSpec
from ditlab.spec.values import value_at
from ditlab_models.contract import Spec
from ditlab_models.extensions import added_parts, check_kind, kinds_of
from ditlab_models.families import FAMILIES, find_family
from ditlab_models.plugins import BUILT_IN, Plugin, PluginGroup, PluginWarning

SpecT = TypeVar("SpecT", bound=Spec)
FOLDER = "folder"
"""Version of a family or add-on that lies in a folder on the Python path and belongs to no package:
`ditlab_models/NAME`, `ditlab_addons/NAME`."""


class DataSource(Spec):
    """Base of the data of other packages. Subclasses add `kind: Literal[NAME] = NAME`."""

    kind: str
    hold_out: HoldOut | HoldOutClasses = 0.1
    """Samples held out of training, for evaluation: a share of the samples, or all samples of some
    classes, `{column: label, values: [3, 7]}`."""

    def store_name(self) -> str:
        """Return the name of the store's folder below DITLAB_HOME/stores: one for each content."""
        raise NotImplementedError

    def write(self, folder: Path) -> None:
        """Write the store into a folder, with `ditlab.data.write_store`. Called where there is none
        yet, and perhaps by two processes at once, which must write the same rows."""
        raise NotImplementedError


DATA_SOURCES: PluginGroup[type[DataSource]] = PluginGroup(
    "ditlab.data_sources",
    "data source",
    lambda kind, source: check_kind(kind, source, DataSource),
    reserved=lambda: kinds_of(DataSpec),
)


def plugin_packages(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the version of each other package that the parts of a resolved experiment come from,
    by name, sorted.
    """
    name = spec["model"]["family"]
    plugins = [FAMILIES.find(name)]
    family = find_family(name)
    if family is not None:
        plugins += added_parts(family.objective_of(spec["objective"]), spec["objective"])
    plugins += [
        DATA_SOURCES.find(kind)
        for kind in source_kinds(spec["data"])
        if kind not in kinds_of(DataSpec)
    ]
    for section, own in (("schedule", ScheduleSpec), ("optimizer", OptimizerSpec)):
        kind = spec[section]["kind"]
        if kind not in kinds_of(own):
            plugins.append(find_kind(section, kind))
    plugins += [find_kind("order", kind) for kind in source_kinds(spec["data"], "order")]
    plugins.append(find_kind("solver", spec["sampling"].get("solver", "")))
    return dict(
        sorted(_package(plugin) for plugin in plugins if plugin and plugin.package != BUILT_IN)
    )


class AddedParts(NamedTuple):
    """Parts of add-ons and other packages that the class of an experiment is made with."""

    sources: tuple[type[DataSource], ...] = ()
    orders: tuple[type[OrderSpec], ...] = ()
    schedules: tuple[type[Schedule], ...] = ()
    optimizers: tuple[type[Optimizer], ...] = ()
    sections: tuple[type[Spec], ...] = ()
    solvers: tuple[tuple[str, str], ...] = ()
    """Names and places."""


def parts_in(mapping: Mapping[str, Any]) -> AddedParts:
    """Return the parts that the mapping of an experiment names. Raises UserError for those that
    cannot be used.
    """
    kinds = [kind for kind in source_kinds(mapping.get("data")) if kind not in kinds_of(DataSpec)]
    # they stand in every spec
    own_orders = [kind for kind in OF_ADDONS["order"] if not absent_part("order", kind)]
    solver = value_at(mapping, ["sampling", "solver"])
    solvers: tuple[tuple[str, str], ...] = ()
    if isinstance(solver, str):
        solvers = tuple(each for each in named("solvers").items() if each[0] == solver)
    return AddedParts(
        sources=tuple(filter(None, map(DATA_SOURCES.load, kinds))),
        orders=_added_orders([*own_orders, *source_kinds(mapping.get("data"), "order")]),
        schedules=_added_to(mapping, "schedule", ScheduleSpec, Schedule),
        optimizers=_added_to(mapping, "optimizer", OptimizerSpec, Optimizer),
        sections=section_classes(mapping),
        solvers=solvers,
    )


def all_added_parts() -> AddedParts:
    """Return all that can be used. Warns of others."""
    return AddedParts(
        sources=tuple(DATA_SOURCES.load_all().values()),
        orders=added_kinds("order", OrderSpec),
        schedules=added_kinds("schedule", Schedule),
        optimizers=added_kinds("optimizer", Optimizer),
        sections=section_classes(),
        solvers=tuple(named("solvers").items()),
    )


def _added_orders(kinds: Iterable[str]) -> tuple[type[OrderSpec], ...]:
    """Return the classes of orders of add-ons: all for a kind that nobody has, so that a message
    can list them.
    """
    found: dict[type[OrderSpec], None] = {}
    for kind in kinds:
        if kind not in kinds_of(FullOrderSpec):
            found |= dict.fromkeys(added_kinds("order", OrderSpec, kind))
    return tuple(found)


def _added_to(
    mapping: Mapping[str, Any], section: str, own: Any, base: type[SpecT]
) -> tuple[type[SpecT], ...]:
    """Return the class of a section's kind where it is no own one: all for one that nobody has, and
    where the kind has not all fields that are given, so that a message can list them."""
    content = value_at(mapping, [section])
    if not isinstance(content, Mapping):
        return ()
    kinds = kinds_of(own)
    kind = content.get("kind", next(iter(kinds)))
    if not isinstance(kind, str):
        kind = ""
    found = () if kind in kinds else added_kinds(section, base, kind)
    kinds |= {each.model_fields["kind"].default: each for each in found}
    is_whole = kind not in kinds or content.keys() <= kinds[kind].model_fields.keys()
    return found if is_whole else added_kinds(section, base)


def added_kinds(noun: str, base: type[SpecT], kind: str = "") -> tuple[type[SpecT], ...]:
    """Return the class of a kind that an add-on brings; for one that nobody has all that can be
    used.

    Raises UserError where the code of the kind cannot be used or its add-on is not here, and warns
    of others.
    """
    reason = absent_part(noun, kind)
    if reason:
        raise UserError(reason)
    known = named(f"{noun}s")
    if kind in known:
        return (_kind_class(noun, kind, known[kind], base),)
    found = []
    for each, target in known.items():
        try:
            found.append(_kind_class(noun, each, target, base))
        except UserError as error:
            warnings.warn(str(error), PluginWarning, stacklevel=2)
    return tuple(found)


def _kind_class(noun: str, kind: str, target: str, base: type[SpecT]) -> type[SpecT]:
    try:
        return check_kind(kind, load_part(noun, kind, target), base)
    except ValueError as error:
        raise UserError(
            f"the {noun} '{kind}' ({target}) cannot be used ({error}); repair or remove it."
        ) from None


def section_classes(mapping: Any = None, field: str = "sections") -> tuple[type[Spec], ...]:
    """Return the classes of the sections that add-ons bring to the spec of a mapping; None: all.

    `field` is that of `ditlab.parts.Parts`: `sections` of an experiment, `sweep_sections` of a
    sweep.

    Those of DiTLab's add-ons stand in every spec, those of other packages in the specs that name
    them. A section in the mapping whose add-on is not here keeps its content as it is. Raises
    UserError where the code of a section in the mapping cannot be used, and warns of others.
    """
    given = mapping if isinstance(mapping, Mapping) else {}
    known = named(field)
    found = []
    for name, target in known.items():
        if mapping is not None and name not in given and name not in OF_ADDONS["section"]:
            continue
        try:
            found.append(_section_class(name, target))
        except UserError as error:
            if name in given:
                raise
            warnings.warn(str(error), PluginWarning, stacklevel=2)
    absent = [name for name in OF_ADDONS["section"] if name in given and name not in known]
    return (*found, *map(_kept_section, absent))


def section_fields(classes: Iterable[type[Spec]]) -> dict[str, Any]:
    """Return the fields of sections, as `pydantic.create_model` takes them."""
    return {
        name: (field.annotation, field)
        for cls in classes
        for name, field in cls.model_fields.items()
    }


def check_sections(spec: Spec, field: str = "sections") -> None:
    """Raise UserError for a section with content whose add-on is not here: it would act in what
    begins.
    """
    absent = [name for name in OF_ADDONS["section"] if name not in named(field)]
    for name in absent:
        if getattr(spec, name, None):
            raise UserError(
                f"{absent_part('section', name)} To begin without it, remove {name} from the spec."
            )


@cache
def _section_class(name: str, target: str) -> type[Spec]:
    found = load_part("section", name, target)
    if not (
        isinstance(found, type) and issubclass(found, Spec) and [*found.model_fields] == [name]
    ):
        raise UserError(
            f"the section '{name}' ({target}) cannot be used (it is no subclass of "
            f"ditlab_models.contract.Spec with the one field '{name}'); repair or remove it."
        )
    return found


@cache
def _kept_section(name: str) -> type[Spec]:
    fields: dict[str, Any] = {name: (Any, None)}
    return create_model(f"{name}-section", __base__=Spec, **fields)


def plugin_tags(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the tag `ditlab.plugins` of a tracked run, `wavelets 1.2, textures 0.3`; none without
    other packages.
    """
    packages = ", ".join(f"{name} {version}" for name, version in plugin_packages(spec).items())
    return {"ditlab.plugins": packages} if packages else {}


def check_installed(packages: Mapping[str, str], what: str) -> None:
    """Raise UserError if a package that `what` (`run 3f9a01bc`) was made with is not installed
    here, in any version.
    """
    missing = {name: version for name, version in packages.items() if not installed_version(name)}
    folders = [name for name, version in missing.items() if version == FOLDER]
    wheels = [f"{name}=={version}" for name, version in missing.items() if version != FOLDER]
    if wheels:
        raise UserError(
            f"{what} needs {' and '.join(wheels)}, not installed here; run `pip install "
            f"{' '.join(wheels)}`."
        )
    if folders:
        raise UserError(
            f"{what} needs the folder {' and '.join(folders)}; put what holds it on the Python "
            "path."
        )


def installed_version(name: str) -> str:
    """Return the version of a package as `plugin_packages` names it; "" where it is not installed
    here.
    """
    root, _, folder = name.partition("/")
    if folder:
        plugin = (ADDONS if root == "ditlab_addons" else FAMILIES).find(folder)
        return FOLDER if plugin and plugin.folder else ""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _package(plugin: Plugin) -> tuple[str, str]:
    if plugin.package:
        return plugin.package, plugin.version
    folder = plugin.target.partition(":")[0].rpartition(".")[0].replace(".", "/")
    return folder, FOLDER
