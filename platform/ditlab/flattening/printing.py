"""Text of a program: imports, constants and definitions in an order in which Python takes them."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from sys import stdlib_module_names
from typing import Any

from pydantic import BaseModel

from ditlab.flattening.constants import PLAIN
from ditlab.flattening.definitions import class_members, spec_members
from ditlab.flattening.program import Program
from ditlab.flattening.sources import Imported, is_docstring
from ditlab.flattening.syntax import WIDTH
from ditlab.flattening.units import Unit

IMPORT_WIDTH = 88
"""Width of an import's line, that of formatters whose user chose none."""


def print_program(program: Program, others: Iterable[Imported] = ()) -> tuple[str, str]:
    """Return a program's imports, with `others` among them, and its definitions: each after those
    that it needs, methods that are roots at the end, as functions.

    Raises ValueError for two definitions of one name, which one file cannot hold.
    """
    _check_names(program)
    parts = list[str]()
    for name in module_order(program):
        parts += _module_parts(program, name)
    parts += [_function(program, unit) for unit in program.roots if unit.member]
    text = ""
    was_constant = False
    for part in parts:
        if text:
            text += "\n" if was_constant and is_constant(part) else "\n\n"
        text += part.strip("\n") + "\n"
        was_constant = is_constant(part)
    return _imports(program, others), _tidy(text)


def _check_names(program: Program) -> None:
    """Raise ValueError for two definitions of one name."""
    places: dict[str, str] = {}
    for unit in program.units:
        other = places.setdefault(unit.name, unit.module)
        if other != unit.module:
            raise ValueError(
                f"{unit.module} and {other} both define {unit.name}, and one file cannot hold "
                "both; rename one of them."
            )


def is_constant(part: str) -> bool:
    """Return True for a text that begins with an assignment."""
    return re.match(r"\s*(?:@|class |def )", part) is None


def _function(program: Program, unit: Unit) -> str:
    """Return a method as a function, without `self`."""
    source = program.module(unit.module)
    node: Any = program.node(unit)
    own, *others = node.args.args
    stop = source.offset(others[0].lineno, others[0].col_offset)
    edits = program.edits_of(unit.module)
    edits.delete(source.offset(own.lineno, own.col_offset), stop)
    first = source.line_start(source.first_line(node))
    last = source.line_start(source.last_line(node, None) + 1)
    return textwrap.dedent(edits.render(first, last))


def module_order(program: Program) -> list[str]:
    """Return the program's modules, each after those that it imports."""
    names = {unit.module for unit in program.units}
    found: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in found or name in above:
            return
        source = program.module(name)
        for each in source.tree.body:
            if isinstance(each, ast.ImportFrom) and each.module in _package_names(program):
                visit(str(each.module), (*above, name))
        found.append(name)

    order = list(program.packages)
    for name in sorted(names, key=lambda name: (order.index(name.partition(".")[0]), name)):
        visit(name, ())
    return [name for name in found if name in names]


def _package_names(program: Program) -> set[str]:
    return {unit.module for unit in program.units}


def _module_parts(program: Program, name: str) -> Iterator[str]:
    source = program.module(name)
    body = source.tree.body
    for number, node in enumerate(body):
        following = body[number + 1] if number + 1 < len(body) else None
        units = [
            Unit(name, each) for each, defined in source.definitions.items() if defined is node
        ]
        unit = next((each for each in units if each in program.units), None)
        if unit is None:
            continue
        spec = program.spec_of(program.value_of(unit)) if isinstance(node, ast.ClassDef) else None
        if spec is not None:
            yield _spec_class(program, spec)
        elif isinstance(node, ast.ClassDef):
            yield _class(program, unit, node)
        else:
            first = source.line_start(source.first_line(node))
            last = source.line_start(source.last_line(node, following) + 1)
            yield program.edits_of(name).render(first, last)


def _class(program: Program, unit: Unit, node: ast.ClassDef) -> str:
    """Return a class with the members that the program uses."""
    source = program.module(unit.module)
    edits = program.edits_of(unit.module)
    begin = source.line_start(source.first_line(node))
    first = node.body[0]
    text = edits.render(begin, source.line_start(first.lineno))
    kept = list[str]()
    body = node.body
    members = class_members(node)
    for number, each in enumerate(body):
        following = body[number + 1] if number + 1 < len(body) else None
        if number == 0 and is_docstring(each):
            assert each.end_lineno is not None
            text += edits.render(
                source.line_start(each.lineno), source.line_start(each.end_lineno + 1)
            )
            continue
        name = next((key for key, value in members.items() if value is each), None)
        if name is None or unit._replace(member=name) not in program.units:
            continue
        start = source.line_start(source.first_line(each))
        stop = source.line_start(source.last_line(each, following) + 1)
        if isinstance(each, ast.FunctionDef) or not kept:
            kept.append("\n")
        kept.append(edits.render(start, stop))
    return text + "".join(kept)


def _spec_class(program: Program, spec: BaseModel) -> str:
    """Return a spec's class as a dataclass of the fields and methods that the program uses."""
    kind = type(spec)
    lines = ["@dataclass(frozen=True)", f"class {kind.__name__}:"]
    node: Any = program.module(kind.__module__).definitions[kind.__name__]
    source = program.module(kind.__module__)
    doc = node.body[0]
    if is_docstring(doc):
        lines.append("".join(source.lines[doc.lineno - 1 : doc.end_lineno]))
    fields = []
    methods = []
    for owner, name in spec_members(kind).values():
        unit = Unit(owner.__module__, owner.__name__, name)
        if unit not in program.units:
            continue
        if name in kind.model_fields:
            fields.append((name, owner))
        else:
            methods.append((name, owner))
    order = list(kind.model_fields)
    for name, owner in sorted(fields, key=lambda each: order.index(each[0])):
        lines.append(_field(program, spec, name, owner))
    for name, owner in methods:
        source = program.module(owner.__module__)
        edits = program.edits_of(owner.__module__)
        member: Any = class_members(source.definitions[owner.__name__])[name]  # type: ignore[arg-type]
        start = source.line_start(source.first_line(member))
        stop = source.line_start(source.last_line(member, None) + 1)
        if lines[-1].endswith("\n"):
            lines[-1] = lines[-1].rstrip("\n")
        lines.append("\n" + edits.render(start, stop).rstrip("\n"))
    return "\n".join(lines)


def _field(program: Program, spec: BaseModel, name: str, owner: type) -> str:
    source = program.module(owner.__module__)
    node: Any = source.definitions[owner.__name__]
    member = class_members(node)[name]
    assert isinstance(member, ast.AnnAssign)
    value = getattr(spec, name)
    assert isinstance(value, (BaseModel, *PLAIN)), f"{name}={value!r} is no default of a dataclass"
    shown = f"{type(value).__name__}()" if isinstance(value, BaseModel) else value_text(value)
    text = f"    {name}: {_type_text(value)} = {shown}"
    if isinstance(value, tuple) and len(text) > WIDTH:
        items = "".join(f"        {value_text(each)},\n" for each in value)
        text = f"    {name}: {_type_text(value)} = (\n{items}    )"
    number = node.body.index(member)
    following = node.body[number + 1] if number + 1 < len(node.body) else None
    if following is not None and is_docstring(following):
        text += "\n" + "".join(source.lines[following.lineno - 1 : following.end_lineno]).rstrip(
            "\n"
        )
    return text


def value_text(value: Any) -> str:
    """Return a plain value as formatters write it."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        items = [value_text(each) for each in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    return repr(value)


def _type_text(value: Any) -> str:
    if value is None:
        return "None"
    if value == ():
        return "tuple[()]"
    if isinstance(value, tuple):
        return "tuple[" + ", ".join(_type_text(each) for each in value) + "]"
    return type(value).__name__


def _imports(program: Program, others: Iterable[Imported]) -> str:
    found = set(others)
    for uses in program.units.values():
        found |= uses.imports
    if any(program.spec_of(program.value_of(unit)) for unit in program.units if not unit.member):
        found.add(Imported("dataclasses", "dataclass", "dataclass"))
    of_python = [each for each in found if each.module.partition(".")[0] in stdlib_module_names]
    others = [each for each in found if each not in of_python]
    sections = [_section(each) for each in (of_python, others) if each]
    return "\n".join(sections)


def _section(found: Iterable[Imported]) -> str:
    """Return the import statements of a section: modules, then names, as isort orders them."""
    found = sorted(found, key=lambda each: (each.module, each.name or "", each.alias))
    lines = []
    by_module: dict[str, list[str]] = {}
    for each in found:
        if each.name is not None:
            shown = each.name if each.name == each.alias else f"{each.name} as {each.alias}"
            by_module.setdefault(each.module, []).append(shown)
        elif each.alias == each.module.partition(".")[0]:
            lines.append(f"import {each.module}")
        else:
            lines.append(f"import {each.module} as {each.alias}")
    for module, names in by_module.items():
        names = sorted(names, key=_import_order)
        line = f"from {module} import {', '.join(names)}"
        if len(line) > IMPORT_WIDTH:
            line = "\n".join([f"from {module} import (", *(f"    {each}," for each in names), ")"])
        lines.append(line)
    return "\n".join(lines) + "\n"


def _import_order(name: str) -> tuple[int, str]:
    """Return the place of a name: constants, classes, functions."""
    if name.isupper() and len(name) > 1:
        return 0, name
    return (1 if name[0].isupper() else 2), name


def _tidy(text: str) -> str:
    """Leave at most two empty lines, and none behind a signature."""
    text = re.sub(r"( -> [^\n]*:\n)\n+(?= )", r"\1", text)
    return re.sub(r"\n{4,}", "\n\n\n", text)
