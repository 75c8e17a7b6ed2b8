"""Questions about statements and expressions that their syntax answers."""

from __future__ import annotations

import ast


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


def has_no_effect(node: ast.expr) -> bool:
    """Return True for an expression that does nothing but give a value."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and not is_dump(each):
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
