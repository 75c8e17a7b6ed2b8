"""Modules as text and syntax trees: what each defines and imports, and changes of its text."""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

Node = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
"""Statement that defines a name of a module."""


@dataclass(frozen=True, order=True)
class Imported:
    """A name as its module imports it: `from module import name`, or `import module` (no name)."""

    module: str
    name: str | None
    alias: str


class SourceModule:
    """A module's text, its definitions and its imports, those inside functions included."""

    def __init__(self, name: str) -> None:
        """Read a module that can be imported; none of its code runs but that of its packages."""
        found = find_spec(name)
        assert found is not None, f"there is no module {name}"
        assert found.origin is not None, f"module {name} has no file"
        self.name = name
        self.text = Path(found.origin).read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.definitions: dict[str, Node] = {}
        """Statement of each name that the module defines, in order."""
        self.imports: dict[str, Imported] = {}
        """Every import by the name that it binds."""
        for node in self.tree.body:
            for bound in _bound_names(node):
                assert isinstance(node, Node)
                self.definitions[bound] = node
        for each in imports_of(self.tree):
            self.imports[each.alias] = each

    @cached_property
    def lines(self) -> list[str]:
        """Lines of the text, each with its end."""
        return self.text.splitlines(keepends=True)

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        for line in self.lines:
            starts.append(starts[-1] + len(line))
        return starts

    def offset(self, line: int, column: int) -> int:
        """Return the place in the text of a line (from 1) and a column in bytes of UTF-8, as nodes
        have it.
        """
        text = self.lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(text)

    def line_start(self, line: int) -> int:
        """Return the place in the text at which a line (from 1) begins."""
        return self._starts[line - 1]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return begin and end of a node in the text."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno, node.end_col_offset),
        )

    def first_line(self, node: ast.stmt) -> int:
        """Return the line at which a statement begins: that of its first decorator, or of the
        comment directly above."""
        line = node.lineno
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.decorator_list:
            line = min(line, *(each.lineno for each in node.decorator_list))
        while line > 1 and self.lines[line - 2].strip().startswith("#"):
            line -= 1
        return line

    def last_line(self, node: ast.stmt, following: ast.stmt | None) -> int:
        """Return the line at which a statement ends: an assignment with that of its docstring, the
        statement that follows it.
        """
        is_assignment = isinstance(node, ast.Assign | ast.AnnAssign)
        if is_assignment and following is not None and is_docstring(following):
            node = following
        assert node.end_lineno is not None
        return node.end_lineno


def is_docstring(node: ast.stmt) -> bool:
    """Return True for a statement that is a string alone."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _bound_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, ast.Assign):
        return [
            each.id
            for target in node.targets
            for each in ast.walk(target)
            if isinstance(each, ast.Name)
        ]
    return []


def imports_of(tree: ast.AST) -> list[Imported]:
    """Return all names that code imports, wherever it does."""
    return [each for node in ast.walk(tree) for each in _imports(node)]


def _imports(node: ast.AST) -> list[Imported]:
    if isinstance(node, ast.ImportFrom) and node.module:
        return [Imported(node.module, each.name, each.asname or each.name) for each in node.names]
    if isinstance(node, ast.Import):
        return [
            Imported(each.name, None, each.asname or each.name.partition(".")[0])
            for each in node.names
        ]
    return []


INDENT = 4


class Edits:
    """Changes of one module's text. Places are offsets; what is deleted twice is deleted once."""

    def __init__(self, module: SourceModule) -> None:
        self.module = module
        self._deleted = bytearray(len(module.text))
        self._inserted: dict[int, str] = {}
        self._strings = _lines_inside_strings(module.text)

    def delete(self, start: int, stop: int) -> None:
        """Delete what stands from `start` up to `stop`."""
        self._deleted[start:stop] = b"\1" * (stop - start)

    def replace(self, start: int, stop: int, text: str) -> None:
        """Put a text in the place of another."""
        self.delete(start, stop)
        self._inserted[start] = text

    def delete_lines(self, first: int, last: int) -> None:
        """Delete whole lines, `last` included."""
        self.delete(self.module.line_start(first), self.module.line_start(last + 1))

    def dedent(self, first: int, last: int) -> None:
        """Move lines one step to the left, `last` included; text inside strings stays."""
        for line in range(first, last + 1):
            if line in self._strings:
                continue
            place = self.module.line_start(line)
            while (
                place < len(self._deleted)
                and self._deleted[place]
                and self.module.text[place] == " "
            ):
                place += 1
            stop = place
            while stop < place + INDENT and self.module.text[stop : stop + 1] == " ":
                stop += 1
            self.delete(place, stop)

    def is_deleted(self, place: int) -> bool:
        """Return True where the character at a place is deleted."""
        return bool(self._deleted[place])

    def render(self, start: int, stop: int) -> str:
        """Return the changed text between two places."""
        found = []
        for place in range(start, stop):
            if place in self._inserted:
                found.append(self._inserted[place])
            if not self._deleted[place]:
                found.append(self.module.text[place])
        return "".join(found)


def _lines_inside_strings(text: str) -> set[int]:
    """Return the lines that begin inside a string."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        found.update(range(token.start[0] + 1, token.end[0] + 1))
    return found
