"""A program made of definitions, each cut down to what its specs take: branches, parameters and
attributes that they never use are gone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from ditlab.flattening.constants import PLAIN, UNKNOWN, is_record
from ditlab.flattening.definitions import Definitions, class_members, spec_members
from ditlab.flattening.reading import UnitReader
from ditlab.flattening.sources import is_docstring
from ditlab.flattening.syntax import parameters
from ditlab.flattening.units import Call, Cuts, Unit, Uses, field_key

Values = dict[str, Any]
"""Value by parameter; UNKNOWN for one that differs."""


def default_values(program: Definitions, unit: Unit) -> Values:
    """Return the value of each default of a function that is a plain one, or a record of the
    program; UNKNOWN for others.
    """
    node = program.node(unit)
    positional = [*node.args.posonlyargs, *node.args.args]
    pairs = [
        *zip(reversed(positional), reversed(node.args.defaults), strict=False),
        *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
    ]
    found = {}
    for argument, default in pairs:
        if isinstance(default, ast.Constant):
            found[argument.arg] = default.value
        elif isinstance(default, ast.Name):
            found[argument.arg] = program.record(unit.module, default.id)
        elif default is not None:
            found[argument.arg] = UNKNOWN
    return found


def passed(program: Definitions, call: Call, unit: Unit) -> Values | None:
    """Return what a call passes by parameter, defaults included; None where it cannot be told, or
    is no call of this function.
    """
    if call.positional is None or "**" in call.keywords:
        return None
    names = [each.arg for each in program.parameters(unit)]
    if len(call.positional) > len(names) or not call.keywords.keys() <= set(names):
        return None
    values = default_values(program, unit)
    values |= dict(zip(names, call.positional, strict=False))
    values |= call.keywords
    if not values.keys() >= set(names):
        return None
    return {name: values[name] for name in names}


class CallSites:
    """All calls of a program, by what they may call."""

    def __init__(self, program: Definitions) -> None:
        self._program = program
        self._by_unit: dict[Unit, list[Call]] = {}
        self._by_method: dict[str, list[Call]] = {}
        self._method_units: dict[str, list[Unit]] = {}
        self._held: dict[str, set[Unit | None]] = {}
        self._as_values: set[Unit] = set()
        self._method_values: set[str] = set()
        self._outside: set[Unit | None] = set()
        """Classes whose objects the code around the program has, made by its roots."""
        for unit, uses in program.units.items():
            if unit in program.roots:
                self._outside |= {call.unit for call in uses.calls}
            if unit.member:
                self._method_units.setdefault(unit.member, []).append(unit)
            self._as_values |= uses.values
            self._method_values |= uses.method_values
            for name, classes in uses.held.items():
                self._held.setdefault(name, set()).update(classes)
            for call in uses.calls:
                if call.unit is not None:
                    self._by_unit.setdefault(call.unit, []).append(call)
                else:
                    self._by_method.setdefault(call.method, []).append(call)

    @property
    def held(self) -> dict[str, frozenset[Unit | None]]:
        """Classes of which each attribute holds objects."""
        return {name: frozenset(classes) for name, classes in self._held.items()}

    def of(self, unit: Unit) -> list[Call] | None:
        """Return all calls of a function; None where there may be others."""
        if not unit.member:
            return None if unit in self._as_values else self._by_unit.get(unit, [])
        if unit.member == "__init__":
            return self._constructions(unit)
        if unit.member == "forward":
            return self._passes(unit)
        if self._program.is_of_library(unit._replace(member=""), unit.member):
            return None
        if unit.member in self._program.entry_names or unit.member in self._method_values:
            return None
        return self._by_method.get(unit.member, [])

    def are_exact(self, unit: Unit) -> bool:
        """Return True where every forward pass of a module's class is a call of an attribute that
        holds nothing else.
        """
        owner = unit._replace(member="")
        if self._by_method.get(""):
            return False
        called = [classes for name, classes in self._held.items() if name in self._by_method]
        return all(classes == {owner} for classes in called if owner in classes or None in classes)

    def _constructions(self, unit: Unit) -> list[Call] | None:
        owner = unit._replace(member="")
        found = [*self._by_unit.get(owner, []), *self._by_unit.get(unit, [])]
        for below in self._program.subclasses(owner):
            if below._replace(member="__init__") not in self._program.units:
                found += self._by_unit.get(below, [])
                if below in self._as_values:
                    return None
        return None if owner in self._as_values or owner in self._program.roots else found

    def _passes(self, unit: Unit) -> list[Call] | None:
        """Return the calls that may be forward passes of a module."""
        owner = unit._replace(member="")
        if owner in self._program.roots or owner in self._outside:
            return None
        found = list(self._by_method.get("", []))
        for name, calls in self._by_method.items():
            classes = self._held.get(name, ())
            is_unclear = None in classes and name not in self._method_units
            if name and (owner in classes or is_unclear):
                found += calls
        return found


class Program(Definitions):
    """The definitions that `roots` need. They are read again until no reading finds less."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Read all that the roots need; the parameters are those of `Definitions`."""
        super().__init__(*arguments, **options)
        while True:
            self.units = {}
            self.edits = {}
            self._attributes = {}
            self._close()
            cuts = self._found_cuts()
            if cuts == self.cuts:
                break
            self.cuts = cuts

    def _close(self) -> None:
        """Read units until none is new."""
        waiting = [*self.roots]
        self.read_names = set(self.entry_names)
        held: dict[str, list[tuple[Unit, BaseModel | None]]] = {}
        ready: list[tuple[Unit, BaseModel | None]] = [(unit, None) for unit in waiting]
        while ready:
            unit, owner = ready.pop()
            if unit in self.units:
                continue
            spec = self.spec_unit(unit)
            if spec is not None:
                uses = Uses()
            elif owner is not None and unit.member in type(owner).model_fields:
                uses = self._field_uses(owner, unit.member)
            else:
                uses = UnitReader(self, unit, owner).uses
            self.units[unit] = uses
            ready.extend((each, None) for each in uses.units | uses.annotated)
            for name in uses.read - self.read_names:
                self.read_names.add(name)
                ready.extend(held.pop(name, ()))
            for below, owned in self._members(unit, spec):
                name = below.member
                if spec is not None and self.is_fixed(spec):
                    name = field_key(spec, name)
                if name in self.read_names or (spec is None and self._is_kept(unit, name)):
                    ready.append((below, owned))
                else:
                    held.setdefault(name, []).append((below, owned))

    def _members(
        self, unit: Unit, spec: BaseModel | None
    ) -> Iterator[tuple[Unit, BaseModel | None]]:
        """Yield the units below a class, with the spec that they are part of."""
        if spec is not None:
            for kind, name in spec_members(type(spec)).values():
                yield Unit(kind.__module__, kind.__name__, name), spec
            return
        if unit.member:
            return
        node = self.node(unit)
        if isinstance(node, ast.ClassDef):
            is_abstract = self._is_abstract(node) and unit not in self.cuts.named
            for member, each in class_members(node).items():
                if not (is_abstract and _is_stub(each)):
                    yield unit._replace(member=member), None

    @staticmethod
    def _is_abstract(node: ast.ClassDef) -> bool:
        return any(
            isinstance(base, ast.Name) and base.id in ("Protocol", "ABC") for base in node.bases
        )

    @staticmethod
    def _field_uses(spec: BaseModel, name: str) -> Uses:
        value = getattr(spec, name)
        uses = Uses()
        if isinstance(value, BaseModel):
            uses.units.add(Unit(type(value).__module__, type(value).__name__))
        return uses

    def _is_kept(self, unit: Unit, name: str) -> bool:
        """Return True for a member that a class keeps in any case: a field of a record, or what a
        base of a library may call.
        """
        if name.startswith("__") and name.endswith("__"):
            return True
        if unit in self.cuts.named and getattr(self.value_of(unit), "_is_protocol", False):
            return True  # `isinstance` looks for all of them
        if self.is_of_library(unit, name):
            return True
        node = self.node(unit)
        is_record = any("dataclass" in ast.dump(each) for each in node.decorator_list)
        is_record = is_record or any("NamedTuple" in ast.dump(each) for each in node.bases)
        return is_record and isinstance(class_members(node)[name], ast.AnnAssign)

    def _found_cuts(self) -> Cuts:
        stored = set().union(*(uses.stored for uses in self.units.values()))
        for unit in self.units:
            if unit.member and unit not in self._by_member.setdefault(unit.member, []):
                self._by_member[unit.member].append(unit)
        variables = {**self.cuts.variables}
        for unit, uses in self.units.items():
            if uses.unread:
                variables[unit] = variables.get(unit, frozenset()) | uses.unread
        parameters = {**self.cuts.parameters}
        for unit, names in unread_parameters(self).items():
            parameters[unit] = parameters.get(unit, frozenset()) | names
        identities = {**self.cuts.identities}
        for unit, uses in self.units.items():
            if uses.identity is not None and (
                not unit.member or len(self._by_member[unit.member]) == 1
            ):
                identities[unit] = uses.identity
        return Cuts(
            frozenset(self.cuts.attributes | (stored - self.read_names)),
            {**self.cuts.constants, **constant_parameters(self)},
            parameters,
            {**self.cuts.results, **self._results()},
            identities,
            variables,
            CallSites(self).held,
            self._live_classes(),
            self.cuts.named.union(*(uses.values for uses in self.units.values())),
            self.cuts.empty | self._empty_classes(),
        )

    def _results(self) -> dict[Unit, Any]:
        """Return the plain value of each function that always returns the same."""
        return {
            unit: uses.result
            for unit, uses in self.units.items()
            if uses.result is not UNKNOWN and isinstance(uses.result, bool | str | None)
        }

    def _live_classes(self) -> frozenset[Unit]:
        named = {*self.roots}.union(*(uses.units for uses in self.units.values()))
        return frozenset(each for each in named if not each.member)

    def _empty_classes(self) -> frozenset[Unit]:
        """Return the classes that are only bases, and of which nothing is left."""
        found = set()
        owners = {unit._replace(member="") for unit in self.units if unit.member}
        for unit in self.units:
            is_class = not unit.member and isinstance(self.node(unit), ast.ClassDef)
            if not is_class or unit in owners or unit in self.roots or self.spec_unit(unit):
                continue
            if not any(unit in uses.values or _calls(uses, unit) for uses in self.units.values()):
                found.add(unit)
        return frozenset(found)


def _is_stub(node: ast.stmt) -> bool:
    """Return True for a method that is only a signature."""
    if not isinstance(node, ast.FunctionDef):
        return False
    last = node.body[-1]
    return is_docstring(last) or (
        isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant)
    )


def _calls(uses: Uses, unit: Unit) -> bool:
    return any(call.unit == unit for call in uses.calls)


def constant_parameters(program: Definitions) -> dict[Unit, Values]:
    """Return by function the parameters to which every call gives the same plain value."""
    sites = CallSites(program)
    found: dict[Unit, Values] = {}
    for unit in program.units:
        node = program.node(unit)
        if not isinstance(node, ast.FunctionDef) or not (calls := sites.of(unit)):
            continue
        is_forward = unit.member == "forward"
        all_values = []
        for call in calls:
            values = passed(program, call, unit)
            if values is not None:
                all_values.append(values)
            elif not is_forward or call.positional is None:
                break
        else:
            same = dict(_same(all_values))
            if same:
                found[unit] = same
    return found


def _same(all_values: list[Values]) -> Iterator[tuple[str, Any]]:
    if not all_values:
        return
    for name, first in all_values[0].items():
        others = [values[name] for values in all_values]
        if is_record(first):
            is_same = all(each is first for each in others)
        else:
            is_same = isinstance(first, PLAIN) and all(
                type(each) is type(first) and each == first for each in others
            )
        if is_same:
            yield name, first


def unread_parameters(program: Definitions) -> dict[Unit, frozenset[str]]:
    """Return by function the parameters that it does not read and whose every call is known, or
    that no call passes.
    """
    sites = CallSites(program)
    found = {}
    for unit, uses in program.units.items():
        node = program.node(unit)
        calls = sites.of(unit) if isinstance(node, ast.FunctionDef) else None
        if not calls:
            continue
        names = [each.arg for each in parameters(node, bool(unit.member))]
        unread = [name for name in names if name not in uses.local_reads]
        unread = [name for name in unread if _may_go(program, sites, unit, name)]
        if unread:
            found[unit] = frozenset(unread)
    return found


def _may_go(program: Definitions, sites: CallSites, unit: Unit, name: str) -> bool:
    """Return True where the argument of a parameter can be deleted in every call."""
    node = program.node(unit)
    calls = sites.of(unit) or []
    if unit.member == "forward":
        return sites.are_exact(unit) or not any(_passes(call, node, name) for call in calls)
    if unit.member and unit.member != "__init__":
        # other classes may have the method, too
        named = [each for each in program.units if each.member == unit.member]
        methods = [each for each in named if isinstance(program.node(each), ast.FunctionDef)]
        return len(methods) == 1
    return all(passed(program, call, unit) is not None for call in calls)


def _passes(call: Call, node: ast.FunctionDef, name: str) -> bool:
    names = [each.arg for each in parameters(node, True)]
    if call.positional is None or "**" in call.keywords:
        return True
    return name in names[: len(call.positional)] or name in call.keywords
