"""Definitions of several modules: what names stand for, what specs decide, what earlier readings of
the program found.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from ditlab.flattening.constants import PLAIN, UNKNOWN, Scope, is_record
from ditlab.flattening.sources import Edits, Imported, SourceModule
from ditlab.flattening.syntax import every_argument, names_of, parameters
from ditlab.flattening.units import Cuts, Unit, Uses


class Definitions:
    """Definitions that a program may use, by name, and the specs that decide it."""

    def __init__(
        self,
        roots: Sequence[Unit],
        fixed: Sequence[BaseModel],
        variable: Sequence[BaseModel] = (),
        read: Iterable[str] = (),
        substitutes: Mapping[str, str] | None = None,
        evaluated: Sequence[str] = (),
        packages: Sequence[str] = ("ditlab_models",),
        is_brief: bool = False,
    ) -> None:
        """Begin a program from `roots`, of some packages.

        `fixed`: specs whose values are known; `variable`: specs whose values may be changed, which
        decide no branch; `read`: attributes that the code around the program reads; `substitutes`:
        classes of that code by the name of the protocol that they have; `evaluated`: functions that
        are called with what is known, and replaced by what they return; `packages`: those whose
        definitions are taken, in the order in which they stand; `is_brief`: docstrings keep
        their first paragraph, and those that cite a source.
        """
        self.roots = roots
        self.fixed = [*_with_parts(fixed)]
        self.variable = [*_with_parts(variable)]
        by_class = {type(each): each for each in (*self.fixed, *self.variable)}
        for each in (*self.fixed, *self.variable):
            # a class is printed once, with its values
            assert each == by_class[type(each)], f"two {type(each).__name__} have other values"
        self.packages = packages
        self.is_brief = is_brief
        self.substitutes = substitutes or {}
        self.evaluated = evaluated
        self.entry_names = frozenset((*read, *(unit.member for unit in roots if unit.member)))
        self.cuts = Cuts()
        self.units: dict[Unit, Uses] = {}
        """Uses of each definition of the program."""
        self.edits: dict[str, Edits] = {}
        self._by_member: dict[str, list[Unit]] = {}
        self._attributes: dict[tuple[Unit, bool], dict[str, Any]] = {}

    def spec_unit(self, unit: Unit) -> BaseModel | None:
        """Return the spec whose class a unit is; None for other units."""
        if unit.member:
            return None
        value = self.value_of(unit)
        return self.spec_of(value) if isinstance(value, type) else None

    def method_result(self, name: str) -> Any:
        """Return what all methods of a name return, where that is one value; else UNKNOWN."""
        found = [self.cuts.results.get(each, UNKNOWN) for each in self._by_member.get(name, [])]
        if not found or any(each is UNKNOWN or each != found[0] for each in found):
            return UNKNOWN
        return found[0]

    def methods(self, name: str) -> list[Unit]:
        """Return the methods of a name, or the forward pass of the module that an attribute
        holds.
        """
        found = self._by_member.get(name, [])
        held = self.cuts.held.get(name, frozenset())
        if found or len(held) != 1:
            return found
        return [each._replace(member="forward") for each in held if each is not None]

    def entries(self, unit: Unit) -> Iterator[tuple[Any, ast.expr]]:
        """Yield the entries of a table of a module: keys that are plain, and expressions."""
        table = self.node(unit).value
        assert isinstance(table, ast.Dict)
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant):
                yield key.value, value

    def bases(self, unit: Unit) -> list[Unit]:
        """Return the classes of the package that a class has as bases."""
        node = self.node(unit)
        if not isinstance(node, ast.ClassDef):
            return []
        named = [
            self.resolve(unit.module, each.id) for each in node.bases if isinstance(each, ast.Name)
        ]
        return [each for each in named if isinstance(each, Unit)]

    def subclasses(self, unit: Unit) -> list[Unit]:
        """Return the classes of the program that have a class as a base."""
        return [each for each in self.units if not each.member and unit in self.bases(each)]

    def initialisers(self, unit: Unit) -> list[Unit]:
        """Return the `__init__` that makes objects of a class."""
        node = self.node(unit)
        if not isinstance(node, ast.ClassDef):
            return []
        if "__init__" in class_members(node):
            return [unit._replace(member="__init__")]
        for base in self.bases(unit):
            return self.initialisers(base)
        return []

    def super_method(self, unit: Unit, func: ast.Attribute) -> Unit | None:
        """Return the method of the package that `super().name` is."""
        if not isinstance(func.value, ast.Call) or not isinstance(func.value.func, ast.Name):
            return None
        if func.value.func.id != "super":
            return None
        for base in self.bases(unit._replace(member="")):
            if func.attr in class_members(self.node(base)):
                return base._replace(member=func.attr)
            if func.attr == "__init__":
                found = self.initialisers(base)
                if found:
                    return found[0]
        return None

    def parameters(self, unit: Unit) -> list[ast.arg]:
        """Return the parameters of a function or method that a call may pass."""
        node = self.node(unit)
        if not isinstance(node, ast.FunctionDef):
            return []
        return parameters(node, bool(unit.member))

    def is_table(self, unit: Unit) -> bool:
        """Return True for a mapping that a module writes out."""
        return isinstance(getattr(self.node(unit), "value", None), ast.Dict)

    def classes_given(self, unit: Unit) -> set[Unit | None]:
        """Return the classes whose objects a call of a definition returns; None: it cannot be
        told.
        """
        node = self.node(unit)
        if isinstance(node, ast.ClassDef):
            return {unit}
        found: set[Unit | None] = set()
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            for each in ast.walk(node.returns):
                if isinstance(each, ast.Name):
                    named = self.resolve(unit.module, each.id)
                    if isinstance(named, Unit):
                        found.add(named)
        return found or {None}

    def module(self, name: str) -> SourceModule:
        """Return a module's source."""
        return source_module(name)

    def edits_of(self, name: str) -> Edits:
        """Return the changes of a module's text."""
        if name not in self.edits:
            self.edits[name] = Edits(self.module(name))
        return self.edits[name]

    def node(self, unit: Unit) -> Any:
        """Return the statement of a unit."""
        node: Any = self.module(unit.module).definitions[unit.name]
        if unit.member:
            return class_members(node)[unit.member]
        return node

    def resolve(self, module: str, name: str) -> Unit | Imported | None:
        """Return what a name of a module is: a definition of the package, or an import from a
        library; None for a built-in one.
        """
        source = self.module(module)
        if name in source.definitions:
            return Unit(module, name)
        imported = source.imports.get(name)
        if imported is None:
            return None
        if imported.module.split(".")[0] not in self.packages or imported.name is None:
            return imported
        return self.resolve(imported.module, imported.name)

    def value_of(self, unit: Unit) -> Any:
        """Return the object that a definition makes when its module is imported."""
        return getattr(importlib.import_module(unit.module), unit.name)

    def constant(self, module: str, name: str) -> Any:
        """Return the value of a name of a module, where it is a plain one; else UNKNOWN."""
        target = self.resolve(module, name)
        if not isinstance(target, Unit) or not isinstance(
            self.node(target), ast.Assign | ast.AnnAssign
        ):
            return UNKNOWN
        value = self.value_of(target)
        return value if isinstance(value, PLAIN) else UNKNOWN

    def record(self, module: str, name: str) -> Any:
        """Return the object of a frozen dataclass that a name of a module stands for; UNKNOWN for
        anything else.
        """
        target = self.resolve(module, name)
        value = self.value_of(target) if isinstance(target, Unit) else UNKNOWN
        return value if is_record(value) else UNKNOWN

    def spec_of(self, kind: Any) -> BaseModel | None:
        """Return the spec of a class or one below it, or of a type variable of such classes; None
        where there is none, or several.
        """
        if isinstance(kind, TypeVar):
            kinds = get_args(kind.__bound__) or (kind.__bound__,)
        else:
            kinds = (kind,)
        if not all(isinstance(each, type) and issubclass(each, BaseModel) for each in kinds):
            return None
        found = [each for each in (*self.fixed, *self.variable) if isinstance(each, kinds)]
        if len({type(each) for each in found}) != 1:
            return None
        return found[0]

    def is_fixed(self, spec: BaseModel) -> bool:
        """Return True for a spec whose values decide branches."""
        return any(spec is each for each in self.fixed)

    def concrete(self, target: Unit) -> Unit:
        """Return the unit of a spec's own class for that of a base of it; other units as they
        are.
        """
        spec = None if target.member else self.spec_of(self.value_of(target))
        if spec is None:
            return target
        return Unit(type(spec).__module__, type(spec).__name__)

    def is_absent(self, target: Unit) -> bool:
        """Return True for a class of which the program has no object."""
        kind = self.value_of(target)
        if not isinstance(kind, type):
            return False
        if issubclass(kind, BaseModel):
            return self.spec_of(kind) is None
        return self.cuts.live is not None and target not in self.cuts.live

    def is_of_library(self, unit: Unit, name: str) -> bool:
        """Return True for a member that a library's base of a class has, too, and so may call."""
        for base in self.value_of(unit).__mro__[1:]:
            is_own = base.__module__.partition(".")[0] in self.packages
            if not is_own and hasattr(base, name):
                return True
        return False

    def substitute(self, target: Unit) -> str | None:
        """Return what an annotation names in the place of a unit; None: the unit itself."""
        if target.name in self.substitutes:
            return self.substitutes[target.name]
        value = self.value_of(target)
        if getattr(value, "_is_protocol", False) or self.is_absent(target):
            return "Any"
        return None

    def spec_arguments(self, module: str, node: ast.FunctionDef) -> dict[str, BaseModel]:
        """Return the specs of a function's parameters, by their annotations."""
        found = {}
        for argument in every_argument(node.args):
            if argument.annotation is not None:
                spec = self.annotated_spec(module, argument.annotation)
                if spec is not None:
                    found[argument.arg] = spec
        return found

    def annotated_spec(self, module: str, annotation: ast.expr) -> BaseModel | None:
        """Return the one spec that an annotation names; None where it names none, or several."""
        found = {}
        for each in names_of(annotation):
            target = self.resolve(module, each.id)
            spec = self.spec_of(self.value_of(target)) if isinstance(target, Unit) else None
            if spec is not None:
                found[id(spec)] = spec
        if len(found) != 1:
            return None
        return next(iter(found.values()))

    def annotated_classes(self, module: str, annotation: ast.expr) -> set[Unit | None]:
        """Return the classes of the package that an annotation names."""
        named = [self.resolve(module, each.id) for each in names_of(annotation)]
        return {
            each
            for each in named
            if isinstance(each, Unit) and isinstance(self.node(each), ast.ClassDef)
        }

    def known_attributes(self, unit: Unit, are_fixed: bool = True) -> dict[str, Any]:
        """Return the values of the attributes of a class that its specs decide; not `are_fixed`:
        those of specs whose values may change, too.
        """
        key = (unit, are_fixed)
        if key in self._attributes:
            return self._attributes[key]
        found: dict[str, Any] = {}
        self._attributes[key] = found
        node = self.node(unit)
        for base in node.bases:
            target = self.resolve(unit.module, base.id) if isinstance(base, ast.Name) else None
            if isinstance(target, Unit):
                found |= self.known_attributes(target, are_fixed)
        found |= self._annotated_specs(unit, are_fixed)
        initialise = class_members(node).get("__init__")
        if isinstance(initialise, ast.FunctionDef):
            arguments = self.spec_arguments(unit.module, initialise)
            names: dict[str, Any] = dict(
                self.cuts.constants.get(unit._replace(member="__init__"), {})
            )
            names |= {
                name: spec
                for name, spec in arguments.items()
                if self.is_fixed(spec) or not are_fixed
            }
            scope = Scope(names, result=partial(self._result_of, unit.module))
            for name, values in _own_assignments(node).items():
                known = [scope.value(each) for each in values]
                if len(known) == 1 and known[0] is not UNKNOWN:
                    found[name] = known[0]
        return found

    def _annotated_specs(self, unit: Unit, are_fixed: bool) -> dict[str, BaseModel]:
        """Return the specs of a record's fields, by their annotations."""
        found = {}
        for name, member in class_members(self.node(unit)).items():
            if isinstance(member, ast.AnnAssign):
                spec = self.annotated_spec(unit.module, member.annotation)
                if spec is not None and (self.is_fixed(spec) or not are_fixed):
                    found[name] = spec
        return found

    def _result_of(self, module: str, node: ast.Call) -> Any:
        if not isinstance(node.func, ast.Name):
            return UNKNOWN
        target = self.resolve(module, node.func.id)
        return self.cuts.results.get(target, UNKNOWN) if isinstance(target, Unit) else UNKNOWN


def _own_assignments(node: ast.ClassDef) -> dict[str, list[ast.expr]]:
    """Return every value that a class assigns to each attribute of `self`."""
    found: dict[str, list[ast.expr]] = {}
    for each in ast.walk(node):
        targets: list[ast.expr] = []
        if isinstance(each, ast.Assign):
            targets = each.targets
        elif isinstance(each, ast.AnnAssign | ast.AugAssign):
            targets = [each.target]
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                value = getattr(each, "value", None)
                if target.value.id == "self" and value is not None:
                    found.setdefault(target.attr, []).append(value)
    return found


@cache
def source_module(name: str) -> SourceModule:
    """Return the source of a module, read once."""
    return SourceModule(name)


def class_members(node: ast.ClassDef) -> dict[str, ast.stmt]:
    """Return methods and fields of a class by name; a name defined again is the last."""
    found: dict[str, ast.stmt] = {}
    for each in node.body:
        if isinstance(each, ast.FunctionDef):
            found[each.name] = each
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found[each.target.id] = each
        elif isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            found[each.targets[0].id] = each
    return found


def spec_members(kind: type[BaseModel]) -> dict[str, tuple[type, str]]:
    """Return by name the class that defines each field, property and method of a spec."""
    found: dict[str, tuple[type, str]] = {}
    for each in kind.__mro__:
        if each.__module__.startswith("pydantic") or each.__module__ in (
            "builtins",
            "typing",
            "abc",
        ):
            continue
        node: Any = source_module(each.__module__).definitions.get(each.__name__)
        if not isinstance(node, ast.ClassDef):
            continue
        for name in class_members(node):
            found.setdefault(name, (each, name))
    return found


def _with_parts(specs: Iterable[BaseModel]) -> Iterator[BaseModel]:
    for spec in specs:
        yield spec
        values = [getattr(spec, name) for name in type(spec).model_fields]
        yield from _with_parts(each for each in values if isinstance(each, BaseModel))
