"""Batches of a store's rows, their conversion to the fields of a model, and checks that columns fit these fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ditlab.data.stores.manifest import Column, StoredColumn, format_shape
from ditlab.data.stores.view import View
from ditlab.errors import UserError
from ditlab_models.contract import ANY, BatchField


def to_device(
    batch: Mapping[str, Tensor], fields: Sequence[BatchField], columns: Mapping[str, Column], device: torch.device | str
) -> dict[str, Tensor]:
    """Convert a batch to a model's fields: moved in the store's dtype, then converted on the device.

    A field with a `value_range` is mapped linearly from the column's range onto it, in float32; the rest is cast.
    """
    converted = {}
    for field in fields:
        moved = batch[field.name].to(device, non_blocking=True)
        source, target = columns[field.name].value_range, field.value_range
        if target is None or source is None:
            moved = moved.to(getattr(torch, field.dtype))
        else:
            # one division and one addition keep both ends of the range exact: x/127.5 - 1 for bytes onto (-1, 1)
            ratio = (source[1] - source[0]) / (target[1] - target[0])
            moved = _map_linearly(moved, ratio, target[0] - source[0] / ratio)
        converted[field.name] = moved
    return converted


def _map_linearly(values: Tensor, ratio: float, offset: float) -> Tensor:
    """Return values / ratio + offset in float32, the same bits on every device."""
    if values.device.type != "cpu":
        return values.float().div(ratio).add_(offset)
    # NumPy stays on this thread. Two threads of torch, which spin at barriers, took 1,300 to 2,500 microseconds for
    # 128 small images on two cores that others used as well, and up to half a second; NumPy took 73.
    found = torch.empty(values.shape)
    out = found.numpy()
    np.divide(values.numpy(), ratio, out=out, dtype=np.float32, casting="unsafe")
    np.add(out, np.float32(offset), out=out)
    return found


def held_out_batches(
    view: View, fields: Sequence[BatchField], size: int, limit: int | None = None
) -> Iterator[dict[str, Tensor]]:
    """Iterate over the view's first `limit` rows (None: all), up to `size` at a time, in the store's dtype.

    Rows come in the view's own order, bucket by bucket; two calls give the same batches.
    """
    for rows in view.batches(size, limit):
        yield {field.name: view.gather(field.name, rows.indices) for field in fields}


def check_fields(view: View, fields: Sequence[BatchField], *, settable: bool = False) -> None:
    """Raise UserError for the first field that the view's store does not have, with its columns and the remedy.

    `settable`: the model is not trained yet, so the remedy names settings of its sizes.
    """
    for field in fields:
        column = view.columns.get(field.name)
        if column is None:
            raise UserError(
                f"{view.origin} holds no column '{field.name}' (it holds {', '.join(view.columns)}), and the model "
                "needs it; change data or model.family."
            )
        problem = _shape_problem(field, column, settable) or _size_problem(field, view, settable)
        if problem := problem or _value_problem(field, column, settable):
            raise UserError(f"{view.origin} {problem}")


def _shape_problem(field: BatchField, column: StoredColumn, settable: bool) -> str:
    # a column's axis whose size differs between buckets is ANY, and fits no field of one size
    if len(field.shape) == len(column.shape) and all(
        map(lambda ours, theirs: ours in (ANY, theirs), field.shape, column.shape)
    ):
        return ""
    sizes: dict[str, int] = {}
    can_fit = settable and len(column.shape) == len(field.shape)
    for option, ours, theirs in zip(field.options.shape or ("",) * 9, field.shape, column.shape, strict=False):
        if ours != ANY and (option or ours != theirs):
            can_fit &= bool(option) and theirs != ANY and sizes.setdefault(option, theirs) == theirs
    before = dict(zip(field.options.shape, field.shape, strict=False))
    settings = " and ".join(f"{option} to {size}" for option, size in sizes.items() if before[option] != size)
    remedy = f"set {settings}" if can_fit and settings else "make the model's sizes those of the data"
    shapes = f"{format_shape(column.shape)}, but the model takes {format_shape(field.shape)}"
    return f"holds {field.name} {shapes}; {remedy} or change data."


def _size_problem(field: BatchField, view: View, settable: bool) -> str:
    axes = [axis for axis, size in enumerate(field.shape) if size == ANY]
    shapes = {part.name: part.columns[field.name].shape for part in view.store.parts}
    sizes = [shape[axis] for shape in shapes.values() for axis in axes]
    for bucket, shape in shapes.items():
        held = f"holds {field.name} {shape}" + (f" in bucket {bucket}" if len(shapes) > 1 else "")
        for size in (shape[axis] for axis in axes):
            if size % field.multiple_of:
                option = f"{field.options.multiple_of}=" if field.options.multiple_of and settable else ""
                fits = max(n for n in range(1, field.multiple_of) if math.gcd(*sizes) % n == 0)
                return (
                    f"{held}, and {size} is not divisible by {option}{field.multiple_of}; "
                    f"{f'set {option}{fits}, or ' if option and fits > 1 else ''}import the data with sizes that are."
                )
            if field.at_most is not None and size > field.at_most:
                option = f"{field.options.at_most}=" if field.options.at_most and settable else ""
                return (
                    f"{held}, and {size} is over {option}{field.at_most}, the most that the model takes; "
                    f"{f'set {option}{max(sizes)}, or ' if option else ''}import the data with smaller sizes."
                )
    return ""


def _value_problem(field: BatchField, column: StoredColumn, settable: bool) -> str:
    """Return the misfit of types, ranges and classes. A larger vocabulary would give tokens without a text."""
    if np.dtype(column.dtype).kind not in {"float32": "uif", "int64": "ui", "bool": "b"}[field.dtype]:
        return (
            f"holds {field.name} as {column.dtype}, but the model takes {field.dtype}; "
            "import the data with another type or change data."
        )
    if field.value_range is not None and column.value_range is None:
        return (
            f"holds {field.name} without a value_range, but the model takes it in the range {field.value_range}; "
            "import the data with a value_range."
        )
    theirs, ours, option = column.num_classes, field.num_classes, field.options.num_classes
    if field.shape and None not in (theirs, ours) and theirs != ours:
        remedy = "import the data with the model's own tokeniser."
        if option and settable:
            remedy = f"set {option} to {theirs} or import the data with another tokeniser."
        return f"holds {field.name} of a vocabulary of {theirs}, but the model's is {ours}; {remedy}"
    low, high = column.statistics.min, column.statistics.max
    if ours is None or (low >= 0 and high < ours):
        return ""
    setting = f"set {option} to {high + 1:.0f} or " if option else ""
    return f"holds {field.name} from {low:.0f} to {high:.0f}, but the model has {ours} classes; {setting}change data."
