"""Classes that are only the base of one other, merged into it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ditlab.flattening.sources import is_docstring
from ditlab.flattening.syntax import assigned_names, names_of, parameters

INITIALISER = "__init__"


@dataclass(frozen=True)
class _Pair:
    """Class, and its base that no other code names."""

    base: ast.ClassDef
    below: ast.ClassDef


def merge_bases(text: str) -> str:
    """Return the text of a program in which each class that is only the base of one other is a part
    of that one.
    """
    while True:
        pair = next(_pairs(ast.parse(text)), None)
        if pair is None:
            return text
        text = _merged(text, pair)


def _pairs(tree: ast.Module) -> Iterator[_Pair]:
    """Yield classes that can be merged."""
    classes = {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}
    used = [each.id for each in names_of(tree)]
    for below in classes.values():
        bases = [each.id for each in below.bases if isinstance(each, ast.Name)]
        if len(below.bases) != 1 or not bases or bases[0] not in classes:
            continue
        base = classes[bases[0]]
        is_plain = not base.decorator_list and not below.decorator_list
        if used.count(base.name) == 1 and is_plain and _is_simple(base, below):
            yield _Pair(base, below)


def _is_simple(base: ast.ClassDef, below: ast.ClassDef) -> bool:
    """Return True where no method but `__init__` goes on in the base's, and that one can be
    written in the place of its call.
    """
    inherited = _methods(base)
    for name, method in _methods(below).items():
        calls = [each for each in ast.walk(method) if _called_of_super(each)]
        if not any(_called_of_super(each) in inherited for each in calls):
            continue
        if name != INITIALISER or len(calls) != 1 or _call_statement(method) is None:
            return False
        if _arguments(inherited[INITIALISER], method) is None:
            return False
    return True


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}


def _called_of_super(node: ast.AST) -> str:
    """Return the name of the method that `super().name(...)` calls; "" for other nodes."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Call(func=ast.Name(id="super"), args=[]), attr=name)
        ):
            return name
    return ""


def _call_statement(method: ast.FunctionDef) -> ast.Expr | None:
    """Return the statement `super().__init__(...)` of a method's body."""
    for each in method.body:
        if isinstance(each, ast.Expr) and _called_of_super(each.value) == INITIALISER:
            return each
    return None


def _arguments(called: ast.FunctionDef, caller: ast.FunctionDef) -> dict[str, ast.expr] | None:
    """Return by parameter what `super().__init__` is given: names, attributes and constants; None
    where it is something else, or a variable of both would be one.
    """
    statement = _call_statement(caller)
    assert statement is not None
    call = statement.value
    assert isinstance(call, ast.Call)
    names = [each.arg for each in parameters(called, is_method=True)]
    given = dict(zip(names, call.args, strict=False))
    given |= {str(each.arg): each.value for each in call.keywords}
    plain = ast.Name | ast.Attribute | ast.Constant
    if given.keys() != set(names) or not all(isinstance(each, plain) for each in given.values()):
        return None
    own = {each.id for each in names_of(caller)} | {each.arg for each in caller.args.args}
    if own & set(assigned_names(called)):
        return None
    return given


def _merged(text: str, pair: _Pair) -> str:
    """Return a text with a class and its base as one class."""
    lines = text.splitlines(keepends=True)
    own = _members(lines, pair.below)
    inherited = _members(lines, pair.base)
    if INITIALISER in own and INITIALISER in inherited:
        own[INITIALISER] = _one_initialiser(lines, pair)
    members = {**inherited, **own}
    fields = [each for name, each in members.items() if name not in _all_methods(pair)]
    methods = [each for name, each in members.items() if name in _all_methods(pair)]
    methods.sort(key=lambda each: f"def {INITIALISER}(" not in each)
    header = "".join(lines[pair.below.lineno - 1 : _begin_of_members(lines, pair.below)])
    base = f"({ast.unparse(pair.base.bases[0])})" if pair.base.bases else ""
    header = header.replace(f"({pair.base.name})", base, 1)
    parts = ["".join(fields).rstrip("\n") + "\n"] if fields else []
    parts += [each.strip("\n") + "\n" for each in methods]
    merged = header.rstrip("\n") + "\n\n" + "\n".join(parts)
    for node, new in sorted(
        ((pair.below, merged), (pair.base, "")), key=lambda each: -each[0].lineno
    ):
        assert node.end_lineno is not None
        lines[node.lineno - 1 : node.end_lineno] = [new]
    return "".join(lines)


def _all_methods(pair: _Pair) -> set[str]:
    return {*_methods(pair.base), *_methods(pair.below)}


def _first_line(lines: list[str], node: ast.stmt) -> int:
    """Return the number (from 0) of the line at which a member begins, with its decorators and the
    comment above.
    """
    line = node.lineno - 1
    if isinstance(node, ast.FunctionDef) and node.decorator_list:
        line = node.decorator_list[0].lineno - 1
    while lines[line - 1].strip().startswith("#"):
        line -= 1
    return line


def _begin_of_members(lines: list[str], node: ast.ClassDef) -> int:
    """Return the number of the line behind a class's docstring."""
    first = node.body[0]
    if is_docstring(first):
        assert first.end_lineno is not None
        return first.end_lineno
    return _first_line(lines, first)


def _members(lines: list[str], node: ast.ClassDef) -> dict[str, str]:
    """Return the text of each member of a class by name, a field's with its docstring."""
    found: dict[str, str] = {}
    name = ""
    for each in node.body[1:] if is_docstring(node.body[0]) else node.body:
        text = "".join(lines[_first_line(lines, each) : each.end_lineno])
        match each:
            case ast.FunctionDef(name=name):
                found[name] = text
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = text
            case _:
                found[name] += text
    return found


def _one_initialiser(lines: list[str], pair: _Pair) -> str:
    """Return the `__init__` of a class with that of its base in the place of its call."""
    own = _methods(pair.below)[INITIALISER]
    inherited = _methods(pair.base)[INITIALISER]
    given = _arguments(inherited, own)
    statement = _call_statement(own)
    assert given is not None
    assert statement is not None
    body = inherited.body[1:] if is_docstring(inherited.body[0]) else inherited.body
    changed = [each.encode() for each in lines]
    places = [each for part in body for each in names_of(part) if each.id in given]
    for each in sorted(places, key=lambda each: (-each.lineno, -each.col_offset)):
        line = changed[each.lineno - 1]
        argument = ast.unparse(given[each.id]).encode()
        changed[each.lineno - 1] = line[: each.col_offset] + argument + line[each.end_col_offset :]
    first = _first_line(lines, own)
    moved = b"".join(changed[_first_line(lines, body[0]) : body[-1].end_lineno]).decode()
    return "".join(
        [*lines[first : statement.lineno - 1], moved, *lines[statement.end_lineno : own.end_lineno]]
    )
