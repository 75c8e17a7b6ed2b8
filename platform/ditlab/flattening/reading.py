"""Reading of one definition: what it uses, and which of its branches its specs take.

Statements that are never reached, or do nothing, are deleted.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from enum import Enum

from pydantic import BaseModel

from ditlab.flattening.constants import UNKNOWN
from ditlab.flattening.definitions import Definitions
from ditlab.flattening.expressions import ExpressionReader
from ditlab.flattening.sources import is_docstring
from ditlab.flattening.syntax import (
    Loops,
    assigned_names,
    bound_names,
    every_argument,
    has_no_effect,
    is_elif,
    is_own_attribute,
    is_type_alias,
    shortened,
)
from ditlab.flattening.units import Unit


class Left(Enum):
    """Rest of a statement."""

    NOTHING = "nothing"
    SOME = "some"
    END = "end"
    """The statement, and nothing behind it is reached."""


class StatementReader(ExpressionReader):
    """Reader of statements."""

    _gone: set[int]
    """Statements that are deleted, by `id`."""
    _taken: dict[int, Sequence[ast.stmt]]
    """Branch that is always taken of an `if`, by its `id`."""

    def _block(self, statements: Sequence[ast.stmt]) -> Left:
        """Read statements, and write `pass` where none is left."""
        is_over = False
        is_after_deleted = False
        for each in statements:
            if is_over or (is_after_deleted and is_docstring(each)):
                self._delete(each)
                continue
            left = self._statement(each)
            is_after_deleted = left is Left.NOTHING
            is_over = left is Left.END
            if is_after_deleted:
                self._gone.add(id(each))
        if is_over:
            return Left.END
        if any(True for _ in self._left(statements)):
            return Left.SOME
        return Left.NOTHING

    def _suite(self, statements: Sequence[ast.stmt]) -> Left:
        """Read the statements below a header, which needs one."""
        left = self._block(statements)
        if left is Left.NOTHING and statements:
            first = statements[0]
            place = self.source.offset(first.lineno, first.col_offset)
            line = self.source.line_start(first.lineno)
            self.edits.replace(line, line, " " * (place - line) + "pass\n")
        return left

    def _left(self, statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        """Yield the statements that are left, those of branches that are always taken in their
        place.
        """
        for each in statements:
            if id(each) in self._taken:
                yield from self._left(self._taken[id(each)])
            elif id(each) not in self._gone:
                yield each

    def _statement(self, node: ast.stmt) -> Left:
        match node:
            case ast.ImportFrom() | ast.Import():
                return self._import(node)
            case ast.If():
                return self._if(node)
            case ast.Assign() | ast.AnnAssign():
                return self._assignment(node)
            case ast.Assert():
                return self._assert(node)
            case ast.For() if self._scope.value(node.iter) == ():
                self._delete(node)
                return Left.NOTHING
            case ast.Expr(value=ast.Call() as call) if self._is_idle(call):
                self._delete(node)
                return Left.NOTHING
            case ast.Return() | ast.Raise():
                self._parts(node)
                return Left.END
            case ast.FunctionDef():
                self._signature(node)
                self._suite(node.body)
                return Left.SOME
        self._parts(node)
        return Left.SOME

    def _parts(self, node: ast.AST) -> None:
        """Read expressions and statements below a node."""
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self._suite(value)
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.expr):
                    self._expression(each)
                elif isinstance(each, ast.AST):
                    self._parts(each)

    def _signature(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            self._expression(decorator)
        for argument in every_argument(node.args):
            if argument.annotation is not None and not self._is_gone(argument):
                self._annotation(argument.annotation)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None and not self._is_gone(default):
                self._expression(default)
        if node.returns is not None:
            self._annotation(node.returns)

    def _import(self, node: ast.Import | ast.ImportFrom) -> Left:
        """Delete an import of the package: what it names is in the program."""
        module = node.names[0].name
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
        if module.partition(".")[0] not in self.program.packages:
            return Left.SOME
        self._delete(node)
        return Left.NOTHING

    def _assert(self, node: ast.Assert) -> Left:
        value = self._scope.value(node.test)
        if value is not UNKNOWN and value:
            self._delete(node)
            return Left.NOTHING
        if value is not UNKNOWN and node.msg is not None:
            message = self.source.text[slice(*self.source.span(node.msg))]
            self.edits.replace(*self.source.span(node), f"raise AssertionError({message})")
            return Left.END
        self._parts(node)
        return Left.SOME

    def _is_idle(self, node: ast.Call) -> bool:
        """Return True for a call that, as a statement, does nothing: a check of a spec, which has
        been done, or a function of which nothing is left."""
        func = node.func
        if isinstance(func, ast.Attribute) and isinstance(self._scope.value(func.value), BaseModel):
            return True
        return self._result(node) is None

    # assignments

    def _assignment(self, node: ast.Assign | ast.AnnAssign) -> Left:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is not None and len(targets) == 1:
            self._note(targets[0], node.value)
            if self._is_unread(targets[0]) and self._does_nothing(node.value):
                self._delete(node)
                return Left.NOTHING
        if isinstance(node, ast.AnnAssign):
            self._annotation(node.annotation)
        if node.value is not None:
            self._expression(node.value)
        for each in targets:
            self._target(each)
        return Left.SOME

    def _note(self, target: ast.expr, value: ast.expr) -> None:
        """Note what a variable or an attribute of `self` holds."""
        if isinstance(target, ast.Name):
            self._made[target.id] = self._classes_made(value)
            known = self._scope.value(value)
            is_changeable = isinstance(value, ast.List | ast.Set)
            if known is not UNKNOWN and target.id in self._once and not is_changeable:
                self._scope.names[target.id] = known
        elif isinstance(target, ast.Attribute) and is_own_attribute(target):
            held = self.uses.held.setdefault(target.attr, set())
            held.update(self._classes_made(value))
            if self._does_nothing(value):
                self.uses.stored.add(target.attr)

    def _is_unread(self, target: ast.expr) -> bool:
        if isinstance(target, ast.Name):
            return target.id in self.program.cuts.variables.get(self.unit, frozenset())
        if isinstance(target, ast.Tuple):
            return all(self._is_unread(each) for each in target.elts)
        if isinstance(target, ast.Attribute) and is_own_attribute(target):
            return target.attr in self.program.cuts.attributes
        return False

    def _does_nothing(self, node: ast.expr) -> bool:
        """Return True for an expression that only gives a value, or draws figures."""
        if isinstance(node, ast.IfExp) and self._scope.value(node.test) is not UNKNOWN:
            return self._does_nothing(node.body if self._scope.value(node.test) else node.orelse)
        if isinstance(node, ast.Call):
            callee = self._callee(node.func)
            if callee is not None and callee.module.endswith(".figures"):
                return True
            if self._result(node) is not UNKNOWN:
                return True
        return has_no_effect(node)

    def _target(self, node: ast.expr) -> None:
        """Read what the target of an assignment reads."""
        if isinstance(node, ast.Attribute):
            self._expression(node.value)
        elif isinstance(node, ast.Subscript):
            self._expression(node.value)
            self._expression(node.slice)
        elif isinstance(node, ast.Tuple | ast.List | ast.Starred):
            for each in ast.iter_child_nodes(node):
                if isinstance(each, ast.expr):
                    self._target(each)

    # conditions

    def _if(self, node: ast.If, is_below: bool = False) -> Left:
        """Read an `if`; `is_below`: an `elif` below a condition that is left."""
        value = self._scope.value(node.test)
        if value is UNKNOWN:
            return self._open_if(node)
        if value:
            return self._take_body(node, is_below)
        return self._take_else(node, is_below)

    def _open_if(self, node: ast.If) -> Left:
        """Read an `if` whose condition is not known."""
        self._expression(node.test)
        body = self._suite(node.body)
        if not node.orelse:
            return Left.SOME
        if is_elif(node):
            inner = node.orelse[0]
            assert isinstance(inner, ast.If)
            other = self._if(inner, is_below=True)
        else:
            other = self._block(node.orelse)
            if other is Left.NOTHING:
                self._delete_lines_between(node.body[-1], node.orelse[-1])
        if body is Left.END and other is Left.END:
            return Left.END
        return Left.SOME

    def _take_body(self, node: ast.If, is_below: bool) -> Left:
        """Put the body in the place of an `if` whose condition always holds."""
        self._taken[id(node)] = node.body
        begin = self.source.first_line(node.body[0])
        last = node.body[-1].end_lineno
        assert last is not None
        left = self._block(node.body)
        if node.orelse:
            self._delete_lines_between(node.body[-1], node.orelse[-1])
        if is_below:
            start = self.source.offset(node.lineno, node.col_offset)
            self.edits.replace(start, self.source.line_start(begin), "else:\n")
        else:
            self.edits.delete_lines(node.lineno, begin - 1)
            self.edits.dedent(begin, last)
        return left

    def _take_else(self, node: ast.If, is_below: bool) -> Left:
        """Put the other branch in the place of an `if` whose condition never holds."""
        end = node.end_lineno
        assert end is not None
        if not node.orelse:
            first = node.lineno if is_below else self.source.first_line(node)
            self.edits.delete_lines(first, end)
            return Left.NOTHING
        self._taken[id(node)] = node.orelse
        if is_elif(node):
            return self._take_elif(node, is_below)
        left = self._block(node.orelse)
        header = self._line_of_else(node)
        if is_below:
            self.edits.delete_lines(node.lineno, header - 1)
        else:
            self.edits.delete_lines(node.lineno, header)
            self.edits.dedent(header + 1, end)
        return left

    def _take_elif(self, node: ast.If, is_below: bool) -> Left:
        inner = node.orelse[0]
        assert isinstance(inner, ast.If)
        self.edits.delete_lines(node.lineno, inner.lineno - 1)
        if not is_below:
            start = self.source.offset(inner.lineno, inner.col_offset)
            self.edits.delete(start, start + len("el"))
        left = self._if(inner, is_below)
        if left is Left.NOTHING:
            self._gone.add(id(inner))
        return left

    def _line_of_else(self, node: ast.If) -> int:
        line = node.body[-1].end_lineno
        assert line is not None
        while not self.source.lines[line].strip().startswith("else"):
            line += 1
        return line + 1

    # text

    def _delete(self, node: ast.stmt) -> None:
        assert node.end_lineno is not None
        self._gone.add(id(node))
        self.edits.delete_lines(self.source.first_line(node), node.end_lineno)

    def _delete_lines_between(self, before: ast.stmt, last: ast.stmt) -> None:
        """Delete the lines behind one statement, up to another that is deleted, too."""
        assert before.end_lineno is not None
        assert last.end_lineno is not None
        self.edits.delete_lines(before.end_lineno + 1, last.end_lineno)


class UnitReader(StatementReader):
    """Reader of one unit."""

    def __init__(self, program: Definitions, unit: Unit, owner: BaseModel | None = None) -> None:
        """`owner`: the spec whose class the unit is a member of, where it is one."""
        super().__init__(program, unit)
        self._gone = set()
        self._taken = {}
        if owner is not None and program.is_fixed(owner):
            self._scope.names["self"] = owner
        elif unit.member:
            above = Unit(unit.module, unit.name)
            self._scope.attributes = program.known_attributes(above)
            self._kinds.attributes = program.known_attributes(above, are_fixed=False)
        node = program.node(unit)
        if isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, ast.FunctionDef):
            self._function(node)
        else:
            self._definition(node)

    def _class(self, node: ast.ClassDef) -> None:
        """Read what stands above a class's members."""
        self._docstring(node.body[0])
        for each in (*node.decorator_list, *(keyword.value for keyword in node.keywords)):
            self._expression(each)
        items = []
        dropped = set()
        for number, base in enumerate(node.bases):
            items.append((str(number), *self.source.span(base)))
            target = self._resolve(base)
            if isinstance(target, Unit) and target in self.program.cuts.empty:
                dropped.add(str(number))
            elif isinstance(target, Unit):
                self._use(target, is_call=True)
            else:
                self._expression(base)
        if items and len(dropped) == len(items):
            self.edits.delete(items[0][1] - 1, items[-1][2] + 1)  # with the brackets
        else:
            self._drop_items(items, dropped)

    def _definition(self, node: ast.Assign | ast.AnnAssign) -> None:
        """Read an assignment of a module or a class."""
        if isinstance(node, ast.AnnAssign):
            self._annotation(node.annotation)
        if node.value is None:
            return
        if is_type_alias(node):
            self._annotation(node.value)
        else:
            self._expression(node.value)

    def _function(self, node: ast.FunctionDef) -> None:
        assigned = assigned_names(node)
        self._locals = bound_names(node)
        self._once = {name for name in assigned if assigned.count(name) == 1}
        self._loops = Loops(node)
        for each in ast.walk(node):
            if isinstance(each, ast.FunctionDef):
                self._functions.add(each.name)
                for argument in every_argument(each.args):
                    self._annotations[argument.arg] = argument.annotation
        for name, value in self.program.cuts.constants.get(self.unit, {}).items():
            if name not in assigned:
                self._scope.names[name] = value
        for name, spec in self.program.spec_arguments(self.unit.module, node).items():
            self._kinds.names[name] = spec
            if self.program.is_fixed(spec):
                self._scope.names[name] = spec
        self._drop_parameters(node)
        self._docstring(node.body[0])
        self._signature(node)
        self._suite(node.body)
        self.uses.unread = frozenset(set(assigned) - self.uses.local_reads)
        self._note_result(node)

    def _docstring(self, node: ast.stmt) -> None:
        """Write a docstring without sentences on parameters that are gone."""
        if not is_docstring(node):
            return
        assert isinstance(node, ast.Expr)
        gone = self.program.cuts.parameters.get(self.unit, frozenset())
        text = shortened(node, gone, self.program.is_brief)
        if text is not None:
            self.edits.replace(*self.source.span(node), text)

    def _drop_parameters(self, node: ast.FunctionDef) -> None:
        """Delete the parameters that the function does not read."""
        dropped = self.program.cuts.parameters.get(self.unit, frozenset())
        positional = [*node.args.posonlyargs, *node.args.args]
        missing = len(positional) - len(node.args.defaults)
        defaults = [*[None] * missing, *node.args.defaults]
        items = [
            self._item(argument, default)
            for argument, default in zip(positional, defaults, strict=True)
        ]
        named = [
            self._item(argument, default)
            for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        ]
        if named and all(name in dropped for name, _, _ in named):
            left = [each for each in items if each[0] not in dropped]
            self.edits.delete((left or items)[-1][2], named[-1][2])  # with the star
        else:
            self._drop_items(named, dropped)
        self._drop_items(items, dropped)

    def _item(self, argument: ast.arg, default: ast.expr | None) -> tuple[str, int, int]:
        start = self.source.offset(argument.lineno, argument.col_offset)
        assert argument.end_lineno is not None
        assert argument.end_col_offset is not None
        stop = self.source.offset(argument.end_lineno, argument.end_col_offset)
        if default is not None:
            stop = self.source.span(default)[1]
        return argument.arg, start, stop

    def _note_result(self, node: ast.FunctionDef) -> None:
        """Note what the function returns, where that is all it does."""
        left = [each for each in self._left(node.body) if not is_docstring(each)]
        if not left:
            self.uses.result = None
        if len(left) != 1 or not isinstance(left[0], ast.Return) or left[0].value is None:
            return
        value = left[0].value
        self.uses.result = self._scope.value(value)
        names = [each.arg for each in self.program.parameters(self.unit)]
        if isinstance(value, ast.Name) and value.id in names:
            self.uses.identity = names.index(value.id)
