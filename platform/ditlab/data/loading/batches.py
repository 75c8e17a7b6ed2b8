"""Batches of a store's rows, their conversion to the fields of a model, and checks that columns fit these fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from denoisers.contract import ANY, BatchField
from ditlab.data.stores.manifest import Column, StoredColumn, format_shape
from ditlab.data.stores.view import View
from ditlab.errors import UserError


def to_device(
    batch: Mapping[str, Tensor], fields: Sequence[BatchField], columns: Mapping[str, Column], device: torch.device | str
) -> dict[str, Tensor]:
    """Convert a batch to a model's fields: moved in the store's dtype, then converted on the device.

    A field with a `value_range` is mapped linearly from the column's range onto it, in float32; the rest is cast.
    """
    converted = {}
    for field in fields:
        moved = batch[field.name].to(device, non_blocking=True).to(getattr(torch, field.dtype))
        source, target = columns[field.name].value_range, field.value_range
        if target is not None and source is not None:
            # one division and one addition keep both ends of the range exact: x/127.5 - 1 for bytes onto (-1, 1)
            ratio = (source[1] - source[0]) / (target[1] - target[0])
            moved = moved.div(ratio).add_(target[0] - source[0] / ratio)
        converted[field.name] = moved
    return converted


def held_out_batches(
    view: View, fields: Sequence[BatchField], size: int, limit: int | None = None
) -> Iterator[dict[str, Tensor]]:
    """Iterate over the view's first `limit` rows (None: all), `size` at a time, in the store's dtype.

    Rows come in the view's own order, where there are several buckets bucket by bucket. The last batch (of a bucket)
    may be smaller. Nothing is drawn: two calls give the same batches.
    """
    for rows in view.batches(size, limit):
        yield {field.name: view.gather(field.name, rows.indices) for field in fields}


def check_fields(view: View, fields: Sequence[BatchField], *, settable: bool = False) -> None:
    """Raise UserError for the first field that the view's store does not have, with its columns and the remedy.

    `settable`: the model's sizes can still be set, as it is not trained yet, so the remedy names its settings.
    """
    for field in fields:
        column = view.columns.get(field.name)
        if column is None:
            raise UserError(
                f"{view.origin} holds no column '{field.name}' (it holds {', '.join(view.columns)}), and the model "
                "needs it; change data or model.family."
            )
        problem = (
            _shape_problem(field, column, settable)
            or _size_problem(field, view, settable)
            or _dtype_problem(field, column)
            or _vocabulary_problem(field, column, settable)
            or _class_problem(field, column)
        )
        if problem:
            raise UserError(f"{view.origin} {problem}")


def _shape_problem(field: BatchField, column: StoredColumn, settable: bool) -> str:
    # a column's axis whose size differs between buckets is ANY, and fits no field of one size
    if len(field.shape) == len(column.shape) and all(
        map(lambda ours, theirs: ours in (ANY, theirs), field.shape, column.shape)
    ):
        return ""
    sizes = _fitting_sizes(field, column.shape) if settable else {}
    settings = " and ".join(f"{option} to {size}" for option, size in sizes.items())
    remedy = f"set {settings}" if settings else "make the model's sizes those of the data"
    shapes = f"{format_shape(column.shape)}, but the model takes {format_shape(field.shape)}"
    return f"holds {field.name} {shapes}; {remedy} or change data."


def _fitting_sizes(field: BatchField, shape: tuple[int, ...]) -> dict[str, int]:
    """Return new sizes by option with which a field has a shape; {} where its options cannot give it."""
    if len(shape) != len(field.shape):
        return {}
    options = field.options.shape or ("",) * len(shape)
    sizes: dict[str, int] = {}
    changed = set()
    for option, ours, theirs in zip(options, field.shape, shape, strict=True):
        if ours == ANY or (not option and ours == theirs):
            continue
        if not option or theirs == ANY or sizes.setdefault(option, theirs) != theirs:
            return {}
        if ours != theirs:
            changed.add(option)
    return {option: size for option, size in sizes.items() if option in changed}


def _size_problem(field: BatchField, view: View, settable: bool) -> str:
    """Return the first misfit among the axes of any size, in every bucket."""
    axes = [axis for axis, size in enumerate(field.shape) if size == ANY]
    shapes = {part.name: part.columns[field.name].shape for part in view.store.parts}
    sizes = [shape[axis] for shape in shapes.values() for axis in axes]
    for bucket, shape in shapes.items():
        held = f"holds {field.name} {shape}" + (f" in bucket {bucket}" if len(shapes) > 1 else "")
        for size in (shape[axis] for axis in axes):
            if size % field.multiple_of:
                option = _assignment(field.options.multiple_of, settable)
                fits = max(n for n in range(1, field.multiple_of) if math.gcd(*sizes) % n == 0)
                return (
                    f"{held}, and {size} is not divisible by {option}{field.multiple_of}; "
                    f"{_setting(option, fits) if fits > 1 else ''}import the data with sizes that are."
                )
            if field.at_most is not None and size > field.at_most:
                option = _assignment(field.options.at_most, settable)
                return (
                    f"{held}, and {size} is over {option}{field.at_most}, the most that the model takes; "
                    f"{_setting(option, max(sizes))}import the data with smaller sizes."
                )
    return ""


def _assignment(option: str, settable: bool) -> str:
    """Return `model.patch_size=`; nothing for a field without a option, and for a trained model."""
    return f"{option}=" if option and settable else ""


def _setting(assignment: str, value: int) -> str:
    return f"set {assignment}{value}, or " if assignment else ""


def _dtype_problem(field: BatchField, column: StoredColumn) -> str:
    kinds = {"float32": "uif", "int64": "ui", "bool": "b"}[field.dtype]
    if np.dtype(column.dtype).kind not in kinds:
        return (
            f"holds {field.name} as {column.dtype}, but the model takes {field.dtype}; "
            "import the data with another type or change data."
        )
    if field.value_range is not None and column.value_range is None:
        return (
            f"holds {field.name} without a value_range, but the model takes it in the range {field.value_range}; "
            "import the data with a value_range."
        )
    return ""


def _vocabulary_problem(field: BatchField, column: StoredColumn, settable: bool) -> str:
    """Return the misfit of a vocabulary, which must be the model's own: a larger one gives tokens without a text."""
    theirs, ours = column.num_classes, field.num_classes
    if not field.shape or theirs is None or ours is None or theirs == ours:
        return ""
    remedy = "import the data with the model's own tokeniser."
    if field.options.num_classes and settable:
        remedy = f"set {field.options.num_classes} to {theirs} or import the data with another tokeniser."
    return f"holds {field.name} of a vocabulary of {theirs}, but the model's is {ours}; {remedy}"


def _class_problem(field: BatchField, column: StoredColumn) -> str:
    low, high = column.statistics.min, column.statistics.max
    if field.num_classes is None or (low >= 0 and high < field.num_classes):
        return ""
    option = field.options.num_classes
    setting = f"set {option} to {high + 1:.0f} or " if option else ""
    return (
        f"holds {field.name} from {low:.0f} to {high:.0f}, but the model has {field.num_classes} classes; "
        f"{setting}change data."
    )
