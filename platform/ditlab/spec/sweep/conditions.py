"""`when`: which axes of a sweep exist in a trial, by the values of others."""

from collections.abc import Mapping
from typing import Any

from ditlab.spec.sweep.axes import Axis, same


def accepted(axis: Axis, condition: Any) -> list[Any]:
    """The values of an axis that fulfil a condition on it: the value itself, or those of a list."""
    wanted = condition if isinstance(condition, list) and not axis.takes(condition) else [condition]
    return [value for value in wanted if axis.takes(value)]


def holds(axis: Axis, values: Mapping[str, Any]) -> bool:
    """Return True if an axis exists in a trial, by the values of the axes that its `when` names."""
    return all(path in values and _meets(values[path], condition) for path, condition in axis.when.items())


def in_order(space: Mapping[str, Axis]) -> list[str]:
    """Paths in the file's order, save that an axis comes after those that its `when` names.

    What stands in a circle, or waits for what is no axis, is left out.
    """
    order: list[str] = []
    waiting = list(space)
    while ready := next((path for path in waiting if all(name in order for name in space[path].when)), None):
        order.append(ready)
        waiting.remove(ready)
    return order


def fulfilled(space: Mapping[str, Axis], path: str) -> dict[str, list[Any]]:
    """Return the values of other axes under which one exists, by path, through every `when`.

    An empty list means that it never exists.
    """
    found: dict[str, list[Any]] = {}
    for name, condition in space[path].when.items():
        for other, values in {**fulfilled(space, name), name: accepted(space[name], condition)}.items():
            known = found.get(other, values)
            found[other] = [value for value in values if any(same(value, one) for one in known)]
    return found


def num_combinations(space: Mapping[str, Axis]) -> int:
    """Size of the product of the axes' values, without making it: an axis counts where its `when` holds."""
    return _count(space, in_order(space), {})


def _count(space: Mapping[str, Axis], order: list[str], values: dict[str, Any]) -> int:
    if not order:
        return 1
    path, rest = order[0], order[1:]
    listed = space[path].listed()
    assert listed is not None, f"{path} has no end of values"
    if not holds(space[path], values):
        return _count(space, rest, values)
    # Only values that some `when` asks for make a difference to what follows; the others count alike.
    asked: list[Any] = []
    for axis in space.values():
        for value in accepted(space[path], axis.when[path]) if path in axis.when else ():
            if not any(same(value, known) for known in asked):
                asked.append(value)
    count = sum(_count(space, rest, {**values, path: value}) for value in asked)
    return count + ((len(listed) - len(asked)) * _count(space, rest, values) if len(listed) > len(asked) else 0)


def _meets(value: Any, condition: Any) -> bool:
    return same(value, condition) or (isinstance(condition, list) and any(same(value, one) for one in condition))
