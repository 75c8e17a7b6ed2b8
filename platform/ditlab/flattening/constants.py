"""Expressions whose value a spec decides, found by reading them: no code is run but properties of
specs.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

UNKNOWN: Any = object()
"""Value of an expression that only a run decides."""
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
PLAIN = (bool, int, float, str, type(None), tuple)
"""Types of the values that fields of specs have, beside specs."""


def is_record(value: Any) -> bool:
    """Return True for a spec, or an object of a frozen dataclass: its fields do not change."""
    if isinstance(value, BaseModel):
        return True
    parameters = getattr(value, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and not isinstance(value, type)


@dataclass
class Scope:
    """Knowledge of the names in a function."""

    names: dict[str, Any] = field(default_factory=dict)
    """Value by local name."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Value by attribute of `self`."""
    global_value: Callable[[str], Any] = lambda name: UNKNOWN
    """Value of a name of the module."""
    is_instance: Callable[[ast.expr, ast.expr], Any] = lambda subject, kind: UNKNOWN
    """True or False for expressions of an object and of a class or classes."""
    entry: Callable[[ast.Subscript], Any] = lambda node: UNKNOWN
    """Value of an entry of a table."""
    result: Callable[[ast.Call], Any] = lambda node: UNKNOWN
    """Value that a call returns."""

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression, or UNKNOWN."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                if node.id in self.names:
                    return self.names[node.id]
                return self.global_value(node.id)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return self.entry(node)
            case ast.Call():
                return self._call(node)
            case ast.Tuple() | ast.List() | ast.Set():
                items = tuple(self.value(each) for each in node.elts)
                return UNKNOWN if any(item is UNKNOWN for item in items) else items
        return self._condition(node)

    def _condition(self, node: ast.expr) -> Any:
        """Return the value of a condition, or of what one chooses."""
        match node:
            case ast.UnaryOp(op=ast.Not()):
                operand = self.value(node.operand)
                return UNKNOWN if operand is UNKNOWN else not operand
            case ast.Compare():
                return self._comparison(node)
            case ast.BoolOp():
                return self._joined(node)
            case ast.IfExp():
                test = self.value(node.test)
                if test is UNKNOWN:
                    return UNKNOWN
                return self.value(node.body if test else node.orelse)
        return UNKNOWN

    def _call(self, node: ast.Call) -> Any:
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[subject, kind]):
                return self.is_instance(subject, kind)
        return self.result(node)

    def _attribute(self, node: ast.Attribute) -> Any:
        if (
            isinstance(node.value, ast.Name)
            and node.value.id == "self"
            and "self" not in self.names
        ):
            return self.attributes.get(node.attr, UNKNOWN)
        base = self.value(node.value)
        if not is_record(base) or not hasattr(base, node.attr):
            return UNKNOWN
        found = getattr(base, node.attr)
        if is_record(found) or isinstance(found, PLAIN):
            return found
        return UNKNOWN

    def _comparison(self, node: ast.Compare) -> Any:
        values = [self.value(each) for each in (node.left, *node.comparators)]
        if any(value is UNKNOWN or is_record(value) for value in values):
            is_none = all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
            if not is_none or UNKNOWN in values:
                return UNKNOWN
        pairs = zip(node.ops, values, values[1:], strict=False)
        return all(_COMPARISONS[type(op)](left, right) for op, left, right in pairs)

    def _joined(self, node: ast.BoolOp) -> Any:
        is_and = isinstance(node.op, ast.And)
        is_known = True
        value = UNKNOWN
        for each in node.values:
            value = self.value(each)
            if value is UNKNOWN:
                is_known = False
            elif bool(value) != is_and:
                return value  # it decides, whatever the others are: none has an effect of its own
        return value if is_known else UNKNOWN
