"""Checks that the columns of a store fit the fields of a model. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ditlab.data.stores.manifest import StoredColumn, format_shape
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab_models.contract import ANY, BatchField


def check_fields(view: View, fields: Sequence[BatchField], *, settable: bool = False) -> None:
    """Raise UserError for the first field that the view's store does not have, with its columns and
    the remedy.

    `settable`: the model is not trained yet, so the remedy names settings of its sizes.
    """
    for field in fields:
        column = view.columns.get(field.name)
        if column is None:
            raise UserError(
                f"{view.origin} holds no column '{field.name}' (it holds "
                f"{', '.join(view.columns)}), and the model needs it; change data or "
                "model.family."
            )
        problem = _shape_problem(field, column, settable) or _size_problem(field, view, settable)
        problem = problem or _value_problem(field, column, settable)
        if problem:
            raise UserError(f"{view.origin} {problem}")


def _shape_problem(field: BatchField, column: StoredColumn, settable: bool) -> str:
    has_axes = len(field.shape) == len(column.shape)
    # a column's axis whose size differs between buckets is ANY, and fits no field of one size
    axes = zip(field.shape, column.shape, strict=False)
    if has_axes and all(ours in (ANY, theirs) for ours, theirs in axes):
        return ""
    settings = _fitting_settings(field, column) if settable and has_axes else ""
    remedy = "make the model's sizes those of the data"
    if settings:
        remedy = f"set {settings}"
    shapes = f"{format_shape(column.shape)}, but the model takes {format_shape(field.shape)}"
    return f"holds {field.name} {shapes}; {remedy} or change data."


def _fitting_settings(field: BatchField, column: StoredColumn) -> str:
    """Return in a clause which settings give a field the axes of a column; empty where none do."""
    sizes: dict[str, int] = {}
    options = field.options.shape or ("",) * len(field.shape)
    for option, ours, theirs in zip(options, field.shape, column.shape, strict=False):
        is_free = ours == ANY or (ours == theirs and not option)
        if is_free:
            continue
        if not option or theirs == ANY or sizes.setdefault(option, theirs) != theirs:
            return ""
    before = dict(zip(options, field.shape, strict=False))
    return " and ".join(
        f"{option} to {size}" for option, size in sizes.items() if before[option] != size
    )


def _size_problem(field: BatchField, view: View, settable: bool) -> str:
    axes = [axis for axis, size in enumerate(field.shape) if size == ANY]
    shapes = {part.name: part.columns[field.name].shape for part in view.store.parts}
    sizes: list[int] = []
    for shape in shapes.values():
        sizes += (shape[axis] for axis in axes)
    for bucket, shape in shapes.items():
        place = f" in bucket {bucket}" if len(shapes) > 1 else ""
        for axis in axes:
            misfit = _size_misfit(field, shape[axis], sizes, settable)
            if misfit:
                return f"holds {field.name} {shape}{place}, and {misfit}"
    return ""


def _size_misfit(field: BatchField, size: int, sizes: Sequence[int], settable: bool) -> str:
    """Return why a field takes no axis of a size, with a setting that fits all `sizes`; empty where
    it does.
    """
    if size % field.multiple_of:
        option = ""
        if field.options.multiple_of and settable:
            option = f"{field.options.multiple_of}="
        fits = max(n for n in range(1, field.multiple_of) if math.gcd(*sizes) % n == 0)
        setting = f"set {option}{fits}, or " if option and fits > 1 else ""
        return (
            f"{size} is not divisible by {option}{field.multiple_of}; {setting}import the data "
            "with sizes that are."
        )
    if field.at_most is not None and size > field.at_most:
        option = ""
        if field.options.at_most and settable:
            option = f"{field.options.at_most}="
        setting = f"set {option}{max(sizes)}, or " if option else ""
        return (
            f"{size} is over {option}{field.at_most}, the most that the model takes; "
            f"{setting}import the data with smaller sizes."
        )
    return ""


def _value_problem(field: BatchField, column: StoredColumn, settable: bool) -> str:
    """Return the misfit of types, ranges and classes. A larger vocabulary would give tokens without
    a text.
    """
    kinds = {"float32": "uif", "int64": "ui", "bool": "b"}[field.dtype]
    if np.dtype(column.dtype).kind not in kinds:
        return (
            f"holds {field.name} as {column.dtype}, but the model takes {field.dtype}; "
            "import the data with another type or change data."
        )
    if field.value_range is not None and column.value_range is None:
        return (
            f"holds {field.name} without a value_range, but the model takes it in the range "
            f"{field.value_range}; import the data with a value_range."
        )
    theirs = column.num_classes
    ours = field.num_classes
    option = field.options.num_classes
    if field.shape and None not in (theirs, ours) and theirs != ours:
        remedy = "import the data with the model's own tokeniser."
        if option and settable:
            remedy = f"set {option} to {theirs} or import the data with another tokeniser."
        return (
            f"holds {field.name} of a vocabulary of {theirs}, but the model's is {ours}; {remedy}"
        )
    low = column.statistics.min
    high = column.statistics.max
    if ours is None or (low >= 0 and high < ours):
        return ""
    setting = f"set {option} to {high + 1:.0f} or " if option else ""
    return (
        f"holds {field.name} from {low:.0f} to {high:.0f}, but the model has {ours} classes; "
        f"{setting}change data."
    )
