"""Names and expressions of a definition: what they stand for, which calls and attributes there are,
and conditions that specs decide.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from typing import Any

from pydantic import BaseModel

from ditlab.flattening.constants import UNKNOWN, Scope
from ditlab.flattening.definitions import Definitions
from ditlab.flattening.sources import Imported
from ditlab.flattening.syntax import Loops, is_dump, is_own_attribute, names_of
from ditlab.flattening.units import Call, Unit, Uses, field_key

ANY = Imported("typing", "Any", "Any")


class NameReader:
    """Base of the reader of a unit; changes of the text go into the program's edits."""

    def __init__(self, program: Definitions, unit: Unit) -> None:
        self.program = program
        self.unit = unit
        self.source = program.module(unit.module)
        self.edits = program.edits_of(unit.module)
        self.uses = Uses()
        self._locals: set[str] = set()
        """Names that the function binds."""
        self._once: set[str] = set()
        """Variables that it assigns once."""
        self._made: dict[str, set[Unit | None]] = {}
        """Classes of which local names hold objects; None among them: others."""
        self._annotations: dict[str, ast.expr | None] = {}
        """Annotations of parameters."""
        self._functions: set[str] = set()
        """Functions inside."""
        self._loops: Loops | None = None
        self._kinds = Scope()
        """Specs of parameters and attributes, those whose values may change among them."""
        self._scope = Scope(
            global_value=self._global_value,
            is_instance=self._is_instance,
            entry=self._entry_value,
            result=self._result,
        )

    def _resolve(self, node: ast.expr) -> Unit | Imported | None:
        """Return what a name stands for; None for a local or a built-in one, or no name."""
        if not isinstance(node, ast.Name) or node.id in self._locals:
            return None
        return self.program.resolve(self.unit.module, node.id)

    def _use(self, target: Unit | Imported | None, is_call: bool = False) -> None:
        if isinstance(target, Imported):
            self.uses.imports.add(target)
        elif target is not None:
            target = self.program.concrete(target)
            self.uses.units.add(target)
            if not is_call:
                self.uses.values.add(target)

    def _rename(self, node: ast.Name, target: Unit) -> None:
        name = self.program.concrete(target).name
        if name != node.id:
            self.edits.replace(*self.source.span(node), name)

    # values

    def _global_value(self, name: str) -> Any:
        if name in self._locals:
            return UNKNOWN
        return self.program.constant(self.unit.module, name)

    def _table_entry(self, node: ast.expr) -> tuple[Unit, ast.expr] | None:
        """Return a table of a module and its entry, where an expression looks one up by a known
        key.
        """
        if not isinstance(node, ast.Subscript):
            return None
        table = self._resolve(node.value)
        key = self._scope.value(node.slice)
        if key is UNKNOWN or not isinstance(table, Unit) or not self.program.is_table(table):
            return None
        for each, value in self.program.entries(table):
            if each == key:
                return table, value
        return None

    def _entry_value(self, node: ast.Subscript) -> Any:
        found = self._table_entry(node)
        if found is None:
            return UNKNOWN
        return Scope().value(found[1])

    def _callee(self, func: ast.expr) -> Unit | None:
        """Return the definition that a call names, itself or by an entry of a table."""
        target = self._resolve(func)
        found = self._table_entry(func)
        if found is not None and isinstance(found[1], ast.Name):
            target = self.program.resolve(found[0].module, found[1].id)
        if isinstance(target, Unit):
            return target
        return None

    def _result(self, node: ast.Call) -> Any:
        """Return what a call always returns, if it does nothing else; else UNKNOWN."""
        if isinstance(node.func, ast.Attribute):
            if is_own_attribute(node.func):
                return self.program.method_result(node.func.attr)
            return UNKNOWN
        target = self._resolve(node.func)
        if not isinstance(target, Unit):
            return UNKNOWN
        if target.name in self.program.evaluated:
            values = [self._object(each) for each in node.args]
            if not any(value is UNKNOWN for value in values):
                return self.program.value_of(target)(*values)
        return self.program.cuts.results.get(target, UNKNOWN)

    def _object(self, node: ast.expr) -> Any:
        """Return the value of an expression, or the object that a name of a module stands for."""
        value = self._scope.value(node)
        target = self._resolve(node)
        if value is UNKNOWN and isinstance(target, Unit):
            return self.program.value_of(target)
        return value

    def _is_instance(self, subject: ast.expr, kind: ast.expr) -> Any:
        value = self._scope.value(subject)
        if value is UNKNOWN and isinstance(spec := self._kinds.value(subject), BaseModel):
            value = spec  # its values may change, its class does not
        if value is UNKNOWN:
            return self._holds_none(subject, kind)
        kinds = []
        for each in kind.elts if isinstance(kind, ast.Tuple) else [kind]:
            target = self._resolve(each)
            if not isinstance(target, Unit):
                return UNKNOWN
            kinds.append(self.program.value_of(target))
        return isinstance(value, tuple(kinds))

    def _holds_none(self, subject: ast.expr, kind: ast.expr) -> Any:
        """Return False where an attribute of `self` never holds an object of a class."""
        target = self._resolve(kind)
        if not isinstance(subject, ast.Attribute) or not is_own_attribute(subject):
            return UNKNOWN
        held = self.program.cuts.held.get(subject.attr)
        if held is None or None in held or not isinstance(target, Unit) or target in held:
            return UNKNOWN
        return False

    # annotations

    def _annotation(self, node: ast.expr) -> None:
        """Read an annotation: specs are named by their own class, protocols are any object."""
        match node:
            case ast.Name():
                self._annotated_name(node, self.source.span(node)[0])
            case ast.BinOp(op=ast.BitOr()):
                self._union(node)
            case ast.Constant(value=str(text)):
                quoted = ast.parse(text, mode="eval")
                start = self.source.span(node)[0] + 1
                for each in names_of(quoted):
                    self._annotated_name(each, start + each.col_offset)
            case ast.Attribute():
                for each in names_of(node):
                    self._use(self._resolve(each))
            case _:
                for part in ast.iter_child_nodes(node):
                    if isinstance(part, ast.expr):
                        self._annotation(part)

    def _annotated_name(self, node: ast.Name, start: int) -> None:
        target = self.program.resolve(self.unit.module, node.id)
        if not isinstance(target, Unit):
            self._use(target)
            return
        name = self.program.substitute(target)
        if name is None:
            name = self.program.concrete(target).name
            self.uses.annotated.add(self.program.concrete(target))
        if name == "Any":
            self.uses.imports.add(ANY)
        if name != node.id:
            self.edits.replace(start, start + len(node.id), name)

    def _union(self, node: ast.BinOp) -> None:
        """Read a union, without the classes of which the program has no object."""
        for part, other in ((node.left, node.right), (node.right, node.left)):
            target = None
            if isinstance(part, ast.Name):
                target = self.program.resolve(self.unit.module, part.id)
            if isinstance(target, Unit) and self.program.is_absent(target):
                self._cut_around(node, other)
                self._annotation(other)
                return
        self._annotation(node.left)
        self._annotation(node.right)

    # text

    def _cut_around(self, node: ast.expr, part: ast.expr) -> None:
        """Delete an expression but for a part of it."""
        start, stop = self.source.span(node)
        inner_start, inner_stop = self.source.span(part)
        self.edits.delete(start, inner_start)
        self.edits.delete(inner_stop, stop)

    def _drop_items(self, items: Sequence[tuple[str, int, int]], names: Collection[str]) -> None:
        """Delete items, by name, of a list (name, start, stop) that something separates."""
        kept_stop: int | None = None
        for number, (name, start, stop) in enumerate(items):
            if name not in names:
                kept_stop = stop
            elif number + 1 < len(items):
                self.edits.delete(start, items[number + 1][1])
            elif kept_stop is not None:
                self.edits.delete(kept_stop, stop)
            else:
                while self.source.text[stop : stop + 1] in (",", " "):
                    stop += 1
                self.edits.delete(start, stop)

    def _is_gone(self, node: ast.expr | ast.arg | ast.stmt) -> bool:
        place = self.source.offset(node.lineno, node.col_offset)
        return self.edits.is_deleted(place)


class ExpressionReader(NameReader):
    """Reader of expressions."""

    _is_in_text = False
    """True inside an f-string, where a quoted word cannot be written."""

    def _expression(self, node: ast.expr) -> None:
        match node:
            case ast.Name() | ast.Attribute():
                self._named(node)
            case ast.Call():
                self._call(node)
            case ast.IfExp():
                self._conditional(node)
            case ast.BoolOp():
                self._joined(node)
            case ast.Subscript():
                if not self._write_entry(node):
                    self._parts(node)
            case ast.Starred(value=ast.Subscript()):
                self._starred(node)
            case ast.Dict():
                self._mapping(node)
            case ast.JoinedStr():
                self._is_in_text = True
                self._parts(node)
                self._is_in_text = False
            case _:
                self._parts(node)

    def _parts(self, node: ast.AST) -> None:
        """Read the expressions below a node."""
        for each in ast.iter_child_nodes(node):
            if isinstance(each, ast.expr):
                self._expression(each)
            else:
                self._parts(each)

    # names and attributes

    def _named(self, node: ast.Name | ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            if isinstance(node, ast.Attribute):
                self._expression(node.value)
        elif self._write_word(node):
            pass
        elif isinstance(node, ast.Attribute):
            self._attribute(node)
            self.uses.method_values.add(node.attr)
        elif node.id in self._locals:
            self.uses.local_reads.add(node.id)
        else:
            target = self._resolve(node)
            self._use(target)
            if isinstance(target, Unit):
                self._rename(node, target)

    def _attribute(self, node: ast.Attribute) -> None:
        spec = self._scope.value(node.value)
        if isinstance(spec, BaseModel):
            self.uses.read.add(field_key(spec, node.attr))
        elif not self._is_library(node.value):
            self.uses.read.add(node.attr)
        self._expression(node.value)

    def _is_library(self, node: ast.expr) -> bool:
        """Return True for a module of a library, such as `nn`."""
        if isinstance(node, ast.Attribute):
            return self._is_library(node.value)
        return isinstance(self._resolve(node), Imported)

    def _write_word(self, node: ast.Name | ast.Attribute) -> bool:
        """Write a setting that is a word, or on or off, in the place of its name; return True if it
        is one.
        """
        is_global = isinstance(node, ast.Name) and node.id not in self._locals
        if self._is_in_text or is_global:
            return False
        value = self._scope.value(node)
        if not isinstance(value, bool | str | None):
            return False
        text = f'"{value}"' if isinstance(value, str) else repr(value)
        self.edits.replace(*self.source.span(node), text)
        return True

    # conditions and tables

    def _conditional(self, node: ast.IfExp) -> None:
        value = self._scope.value(node.test)
        if value is UNKNOWN:
            self._parts(node)
        else:
            self._keep(node, node.body if value else node.orelse)

    def _keep(self, node: ast.expr, part: ast.expr) -> None:
        """Put a part of an expression in its place."""
        self._cut_around(node, part)
        self._expression(part)

    def _joined(self, node: ast.BoolOp) -> None:
        """Read operands of `and` or `or`, without those that decide nothing."""
        whole = self._scope.value(node)
        if isinstance(whole, bool):
            self.edits.replace(*self.source.span(node), repr(whole))
            return
        is_and = isinstance(node.op, ast.And)
        items = []
        dropped = set()
        for number, each in enumerate(node.values):
            value = self._scope.value(each)
            items.append((str(number), *self._bracketed(each, node)))
            is_last = number == len(node.values) - 1
            if is_last and not isinstance(value, bool):
                continue  # it is what the whole may be
            if value is not UNKNOWN and bool(value) == is_and:
                dropped.add(str(number))
        if len(dropped) == len(items):
            dropped = set()
        for (name, _, _), each in zip(items, node.values, strict=True):
            if name not in dropped:
                self._expression(each)
        self._drop_items(items, dropped)

    def _bracketed(self, part: ast.expr, whole: ast.expr) -> tuple[int, int]:
        """Return begin and end of a part of an expression, with the brackets around it."""
        start, stop = self.source.span(part)
        first, last = self.source.span(whole)
        text = self.source.text
        while True:
            before = len(text[:start].rstrip()) - 1
            after = stop + len(text[stop:]) - len(text[stop:].lstrip())
            is_inside = before >= first and after < last
            if not is_inside or text[before] != "(" or text[after] != ")":
                return start, stop
            start = before
            stop = after + 1

    def _write_entry(self, node: ast.Subscript, is_starred: bool = False) -> bool:
        """Put an entry of a table of a module in the place of its lookup; return True if its key
        is known.
        """
        found = self._table_entry(node)
        if found is None:
            return False
        table, value = found
        source = self.program.module(table.module)
        start, stop = source.span(value)
        if is_starred and isinstance(value, ast.Tuple):
            start += 1  # without its brackets
            stop -= 1
        text = source.text[start:stop]
        if isinstance(value, ast.Lambda):
            text = f"({text})"
        self.edits.replace(*self.source.span(node), text)
        for each in ast.walk(value):
            if isinstance(each, ast.Name):
                self._use(self.program.resolve(table.module, each.id))
        return True

    def _starred(self, node: ast.Starred) -> None:
        assert isinstance(node.value, ast.Subscript)
        if self._write_entry(node.value, is_starred=True):
            start = self.source.span(node)[0]
            self.edits.delete(start, start + 1)
        else:
            self._expression(node.value)

    def _mapping(self, node: ast.Dict) -> None:
        """Read a display of a mapping, without the empty ones that it unpacks."""
        items = []
        dropped = set()
        for number, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
            start, stop = self.source.span(value)
            if key is None:
                start = self.source.text.rindex("**", 0, start)
                if self._scope.value(value) == {}:
                    dropped.add(str(number))
            else:
                start = self.source.span(key)[0]
                self._expression(key)
            items.append((str(number), start, stop))
            if str(number) not in dropped:
                self._expression(value)
        self._drop_items(items, dropped)

    # calls

    def _call(self, node: ast.Call) -> None:
        if self._result(node) == {}:
            self.edits.replace(*self.source.span(node), "{}")
            return
        callees = self._callees(node)
        if callees is None:
            return
        for callee in callees:
            kept = self.program.cuts.identities.get(callee)
            if kept is not None and kept < len(node.args):
                self._keep(node, node.args[kept])
                return
        for callee in callees:
            self._drop_arguments(node, callee)
        for each in (*node.args, *(keyword.value for keyword in node.keywords)):
            if not self._is_gone(each):
                self._expression(each)

    def _callees(self, node: ast.Call) -> list[Unit] | None:
        """Record a call and read what is called; return the definitions that it may be, None where
        the call is no more.
        """
        func = node.func
        target = self._callee(func)
        if target is not None:
            return self._call_of(node, self.program.concrete(target))
        if isinstance(func, ast.Attribute):
            return self._method_call(node, func)
        if isinstance(func, ast.Name):
            if func.id in self._locals:
                self._local_call(node, func.id)
            elif func.id == "cast" and isinstance(node.args[0], ast.Constant):
                self._annotation(node.args[0])
            elif func.id == "getattr" and isinstance(node.args[1], ast.Constant):
                self.uses.read.add(str(node.args[1].value))
        self._expression(func)
        return []

    def _call_of(self, node: ast.Call, target: Unit) -> list[Unit]:
        """Record the call of a definition of the package."""
        self.uses.calls.append(self._record(node, target, ""))
        if target not in self.program.cuts.identities:
            self._use(target, is_call=True)
        if isinstance(node.func, ast.Name):
            self._rename(node.func, target)
        elif isinstance(node.func, ast.Subscript):
            found = self._table_entry(node.func)
            assert found is not None
            self.edits.replace(*self.source.span(node.func), target.name)
        return [target, *self.program.initialisers(target)]

    def _method_call(self, node: ast.Call, func: ast.Attribute) -> list[Unit] | None:
        """Record the call of a method, or of a module that an attribute holds."""
        base = self.program.super_method(self.unit, func)
        self.uses.calls.append(self._record(node, base, func.attr))
        if self._write_solver(node, func):
            return None
        if is_dump(node):
            self._write_dump(node, func)
        self._attribute(func)
        if base is not None:
            return [base]
        if func.attr.startswith("__"):
            return []
        return self.program.methods(func.attr)

    def _local_call(self, node: ast.Call, name: str) -> None:
        """Record the call of a local name, where it may be a module's forward pass."""
        if name in self._functions:
            return
        assert self._loops is not None
        if name in self._loops.attributes:
            for attribute in self._loops.attributes[name]:
                self.uses.calls.append(self._record(node, None, attribute))
            return
        made = self._made.get(name, {None})
        annotation = self._annotations.get(self._loops.origins.get(name, name))
        if annotation is not None:
            made = self.program.annotated_classes(self.unit.module, annotation)
        for each in made:
            forward = None if each is None else each._replace(member="forward")
            self.uses.calls.append(self._record(node, forward, ""))

    def _record(self, node: ast.Call, unit: Unit | None, method: str) -> Call:
        keywords = {each.arg or "**": self._scope.value(each.value) for each in node.keywords}
        return Call(unit, method, self._positional(node.args), keywords)

    def _positional(self, arguments: Sequence[ast.expr]) -> tuple[Any, ...] | None:
        """Return the values of positional arguments; None: starred ones whose number is not
        known.
        """
        found: list[Any] = []
        for each in arguments:
            if not isinstance(each, ast.Starred):
                found.append(self._scope.value(each))
                continue
            value = self._scope.value(each.value)
            if not isinstance(value, tuple):
                return None
            found += value
        return tuple(found)

    def _drop_arguments(self, node: ast.Call, callee: Unit) -> None:
        """Delete the arguments of parameters that the callee does not read."""
        dropped = self.program.cuts.parameters.get(callee)
        if not dropped:
            return
        names = [each.arg for each in self.program.parameters(callee)]
        items = [
            (name, *self.source.span(each)) for name, each in zip(names, node.args, strict=False)
        ]
        for keyword in node.keywords:
            start = self.source.offset(keyword.lineno, keyword.col_offset)
            items.append((str(keyword.arg), start, self.source.span(keyword.value)[1]))
        self._drop_items(items, dropped)

    def _write_solver(self, node: ast.Call, func: ast.Attribute) -> bool:
        """Put the solver that a spec names in the place of its lookup; return True if it is."""
        if func.attr != "find_solver":
            return False
        spec: Any = self._scope.value(func.value)
        table = self._resolve(node.args[0])
        if spec is UNKNOWN or not isinstance(table, Unit):
            return False
        for key, value in self.program.entries(table):
            if key == spec.solver and isinstance(value, ast.Name):
                self._use(self.program.resolve(table.module, value.id))
                self.edits.replace(*self.source.span(node), value.id)
                return True
        return False

    def _write_dump(self, node: ast.Call, func: ast.Attribute) -> None:
        """Write `asdict(spec)` for `spec.model_dump()`."""
        start, stop = self.source.span(node)
        self.edits.replace(start, start, "asdict(")
        self.edits.replace(self.source.span(func.value)[1], stop, ")")
        self.uses.imports.add(Imported("dataclasses", "asdict", "asdict"))
        spec = self._scope.value(func.value)
        if isinstance(spec, BaseModel):
            self.uses.read |= {field_key(spec, name) for name in type(spec).model_fields}

    def _classes_made(self, value: ast.expr) -> set[Unit | None]:
        """Return the classes of the package of which an expression makes objects; None for what
        cannot be told.
        """
        if isinstance(value, ast.Constant):
            return set()
        if isinstance(value, ast.Name):
            return self._made.get(value.id, {None})
        if not isinstance(value, ast.Call):
            return {None}
        if isinstance(value.func, ast.Name) and value.func.id == "cast":
            return self._classes_made(value.args[1])
        callee = self._callee(value.func)
        if callee is not None:
            return self.program.classes_given(callee)
        if not isinstance(value.func, ast.Attribute):
            return {None}
        found: set[Unit | None] = set()
        for method in self.program.methods(value.func.attr):
            if method.member == value.func.attr:
                found |= self.program.classes_given(method)
        if found:
            return found
        for each in ast.walk(value):
            inner = self._callee(each.func) if isinstance(each, ast.Call) else None
            if inner is not None:
                found |= self.program.classes_given(inner)
        return found
