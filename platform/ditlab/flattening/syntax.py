"""Questions about statements and expressions that their syntax answers, and shorter docstrings."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection

WIDTH = 100
_SENTENCES = re.compile(r"(?<=[^.][.;])\s+(?=[A-Z`])")
_CITATION = re.compile(r"arXiv|et al\.|\b(19|20)\d\d\b")


def is_elif(node: ast.If) -> bool:
    """Return True where the other branch of an `if` is an `elif`."""
    return (
        len(node.orelse) == 1
        and isinstance(node.orelse[0], ast.If)
        and node.orelse[0].col_offset == node.col_offset
    )


def is_type_alias(node: ast.Assign | ast.AnnAssign) -> bool:
    """Return True for an assignment of a type, such as `Velocity = Callable[...]`."""
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp)


def is_own_attribute(node: ast.expr) -> bool:
    """Return True for an attribute of `self`."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def is_dump(node: ast.Call) -> bool:
    """Return True for `spec.model_dump()`."""
    is_named = isinstance(node.func, ast.Attribute) and node.func.attr == "model_dump"
    return is_named and not node.args and not node.keywords


def is_partial(node: ast.Call) -> bool:
    """Return True for `functools.partial` of something."""
    return isinstance(node.func, ast.Name) and node.func.id == "partial"


def has_no_effect(node: ast.expr) -> bool:
    """Return True for an expression that does nothing but give a value."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and not (is_dump(each) or is_partial(each)):
            return False
        if isinstance(each, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
            return False
    return True


def every_argument(arguments: ast.arguments) -> list[ast.arg]:
    """Return all parameters in the order of a signature."""
    found = [*arguments.posonlyargs, *arguments.args]
    if arguments.vararg:
        found.append(arguments.vararg)
    found += arguments.kwonlyargs
    if arguments.kwarg:
        found.append(arguments.kwarg)
    return found


def names_of(node: ast.AST) -> list[ast.Name]:
    """Return all names in an expression."""
    return [each for each in ast.walk(node) if isinstance(each, ast.Name)]


def assigned_names(node: ast.AST) -> list[str]:
    """Return the variables that code assigns, each as often as it does."""
    return [each.id for each in names_of(node) if isinstance(each.ctx, ast.Store)]


def bound_names(node: ast.FunctionDef) -> set[str]:
    """Return the names that a function binds: parameters, variables, those of functions inside."""
    found = set(assigned_names(node))
    for each in ast.walk(node):
        if isinstance(each, ast.arg):
            found.add(each.arg)
        elif isinstance(each, ast.FunctionDef) and each is not node:
            found.add(each.name)
    return found


class Loops:
    """Things that the variables of a function's loops run over."""

    def __init__(self, node: ast.FunctionDef) -> None:
        self.attributes: dict[str, set[str]] = {}
        """Attributes of `self`, by variable."""
        self.origins: dict[str, str] = {}
        """The one local name, by variable."""
        for each in ast.walk(node):
            if isinstance(each, ast.For | ast.comprehension):
                self._add(each.target, each.iter)

    def _add(self, target: ast.expr, items: ast.expr) -> None:
        attributes = {
            each.attr
            for each in ast.walk(items)
            if isinstance(each, ast.Attribute) and is_own_attribute(each)
        }
        names = [each.id for each in names_of(items)]
        for variable in names_of(target):
            if attributes:
                self.attributes.setdefault(variable.id, set()).update(attributes)
            if len(names) == 1:
                self.origins[variable.id] = names[0]


def parameters(node: ast.FunctionDef, is_method: bool) -> list[ast.arg]:
    """Return the parameters that a call may pass, without `self`."""
    positional = [*node.args.posonlyargs, *node.args.args]
    decorators = [each.id for each in node.decorator_list if isinstance(each, ast.Name)]
    if is_method and "staticmethod" not in decorators:
        positional = positional[1:]
    return positional + node.args.kwonlyargs


def shortened(node: ast.Expr, gone: Collection[str], is_brief: bool) -> str | None:
    """Return a docstring as source text, from its quotes on, without sentences on parameters that
    are gone; None where it stays as it is.

    `is_brief`: of its paragraphs those behind the first are left that cite a source.
    """
    assert isinstance(node.value, ast.Constant)
    text = str(node.value.value)
    paragraphs = [" ".join(each.split()) for each in text.split("\n\n")]
    kept = []
    for number, paragraph in enumerate(paragraphs):
        if is_brief and number and not _CITATION.search(paragraph):
            continue
        sentences = [
            each
            for each in sentences_of(paragraph)
            if not any(f"`{name}`" in each for name in gone)
        ]
        if sentences:
            kept.append(" ".join(sentences))
    kept = kept or [sentences_of(text)[0]]
    if kept == paragraphs or "\\" in text:
        return None
    return written_docstring(kept, node.col_offset)


def sentences_of(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph of a docstring, without its line breaks."""
    return _SENTENCES.split(" ".join(paragraph.split()))


def written_docstring(paragraphs: Collection[str], indent: int) -> str:
    """Return paragraphs between quotes, filled to the width of a line."""
    margin = " " * indent
    filled = [
        textwrap.fill(
            each,
            WIDTH - indent,
            initial_indent="" if number else '"""',
            break_long_words=False,
            break_on_hyphens=False,
        )
        for number, each in enumerate(paragraphs)
    ]
    text = textwrap.indent("\n\n".join(filled), margin).lstrip()
    last = text.rpartition("\n")[2]
    fits = len(last) + (indent if "\n" not in text else 0) + 3 <= WIDTH
    if "\n" not in text and fits:
        return f'{text}"""'
    return f'{text}\n{margin}"""'
