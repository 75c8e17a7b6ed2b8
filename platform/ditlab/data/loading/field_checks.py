"""Between a store's columns and the fields of a family: are they the same thing, and in which range."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from denoisers.contract import ANY, BatchField, ModelSpec
from ditlab.data.stores.manifest import Column, StoredColumn
from ditlab.data.stores.view import View
from ditlab.errors import UserError


def check_fields(view: View, fields: Sequence[BatchField], model: ModelSpec | None = None) -> None:
    """Raises UserError for the first field that the view's store cannot give, with what it holds and the remedy.

    `model`: whose fields they are, where its sizes can still be set; None once it is trained.
    """
    for field in fields:
        column = view.columns.get(field.name)
        if column is None:
            raise UserError(
                f"{view.origin} holds no column '{field.name}' (it holds {', '.join(view.columns)}), and the model "
                "needs it; change data or model.family."
            )
        problem = (
            _shape_problem(field, column, model)
            or _size_problem(field, view, model)
            or _dtype_problem(field, column)
            or _vocabulary_problem(field, column, model)
            or _class_problem(field, column)
        )
        if problem:
            raise UserError(f"{view.origin} {problem}")


def _shape_problem(field: BatchField, column: StoredColumn, model: ModelSpec | None) -> str:
    if _agreement(field, column.shape) == len(column.shape):
        return ""
    sizes = _fitting_sizes(field.name, column.shape, model) if model and ANY not in column.shape else {}
    settings = [f"model.{name} to {size}" for name, size in sizes.items()]
    remedy = f"set {' and '.join(settings)}" if settings else "make the model's sizes those of the data"
    shapes = f"{_written(column.shape)}, but the model wants {_written(field.shape)}"
    return f"holds {field.name} {shapes}; {remedy} or change data."


def _agreement(field: BatchField, shape: tuple[int, ...]) -> int:
    """How many axes of a shape are the field's; -1 where their numbers differ. An axis that differs between buckets is
    ANY, too, and no field's of one size."""
    same = [ours in (ANY, theirs) for ours, theirs in zip(field.shape, shape, strict=False)]
    return sum(same) if len(field.shape) == len(shape) else -1


def _written(shape: tuple[int, ...]) -> str:
    """`(3, any, any)`; plain shapes as Python has them."""
    return str(shape).replace(str(ANY), "any")


def _field(name: str, model: ModelSpec) -> BatchField | None:
    return next((field for field in model.batch_fields() if field.name == name), None)


def _fitting_sizes(name: str, shape: tuple[int, ...], model: ModelSpec) -> dict[str, int]:
    """The sizes of a model with which its field has a shape, found by trying; none where none do.

    Each whole number of the spec is tried at each number of the shape, and kept where more of the shape then agrees.
    """

    def agreement(sizes: dict[str, int]) -> int:
        field = _field(name, model.model_copy(update=sizes))
        return -1 if field is None else _agreement(field, shape)

    sizes: dict[str, int] = {}
    for knob in (knob for knob, value in model if type(value) is int):
        best = max(({**sizes, knob: size} for size in dict.fromkeys(shape)), key=agreement, default=sizes)
        if agreement(best) > agreement(sizes):
            sizes = best
    return sizes if agreement(sizes) == len(shape) else {}


def _size_problem(field: BatchField, view: View, model: ModelSpec | None) -> str:
    """Of the axes of any size, in every bucket."""
    axes = [axis for axis, size in enumerate(field.shape) if size == ANY]
    shapes = {part.name: part.columns[field.name].shape for part in view.store.parts}
    sizes = [shape[axis] for shape in shapes.values() for axis in axes]
    for bucket, shape in shapes.items():
        held = f"holds {field.name} {shape}" + (f" in bucket {bucket}" if len(shapes) > 1 else "")
        for size in (shape[axis] for axis in axes):
            if size % field.multiple_of:
                knob = _knob(field, "multiple_of", model)
                fits = max(n for n in range(1, field.multiple_of) if math.gcd(*sizes) % n == 0)
                return (
                    f"{held}, and {size} is not divisible by {knob}{field.multiple_of}; "
                    f"{_set(knob, fits) if fits > 1 else ''}import the data with sizes that are."
                )
            if field.at_most is not None and size > field.at_most:
                knob = _knob(field, "at_most", model)
                return (
                    f"{held}, and {size} is over {knob}{field.at_most}, the most that the model takes; "
                    f"{_set(knob, max(sizes))}import the data with smaller sizes."
                )
    return ""


def _knob(field: BatchField, attribute: str, model: ModelSpec | None) -> str:
    """The model's setting that an attribute of its field follows, found by trying, as `model.patch_size=`; or nothing,
    where none does."""
    if model is None or field not in model.batch_fields():
        return ""
    for knob, value in model:
        if type(value) is int:
            changed = _field(field.name, model.model_copy(update={knob: 2 * value}))
            if changed is not None and getattr(changed, attribute) != getattr(field, attribute):
                return f"model.{knob}="
    return ""


def _set(knob: str, value: int) -> str:
    return f"set {knob}{value}, or " if knob else ""


def _dtype_problem(field: BatchField, column: StoredColumn) -> str:
    kinds = {"float32": "uif", "int64": "ui", "bool": "b"}[field.dtype]
    if np.dtype(column.dtype).kind not in kinds:
        return (
            f"holds {field.name} as {column.dtype}, but the model wants {field.dtype}; "
            "import the data with another type or change data."
        )
    if field.value_range is not None and column.value_range is None:
        return (
            f"holds {field.name} without a value_range, and the model wants it mapped onto {field.value_range}; "
            "import the data with a value_range."
        )
    return ""


def _vocabulary_problem(field: BatchField, column: StoredColumn, model: ModelSpec | None) -> str:
    """Sequences of tokens need the very vocabulary: a model that knows more gives tokens that nobody can read."""
    theirs, ours = column.num_classes, field.num_classes
    if not field.shape or theirs is None or ours is None or theirs == ours:
        return ""
    remedy = "import the data with the model's own tokeniser."
    for knob in (knob for knob, value in model or () if type(value) is int):
        fields = model.model_copy(update={knob: theirs}).batch_fields() if model else ()
        if any(each.name == field.name and each.num_classes == theirs for each in fields):
            remedy = f"set model.{knob} to {theirs} or import the data with another tokeniser."
    return f"holds {field.name} of a vocabulary of {theirs}, but the model's is {ours}; {remedy}"


def _class_problem(field: BatchField, column: StoredColumn) -> str:
    low, high = column.statistics.min, column.statistics.max
    if field.num_classes is None or (low >= 0 and high < field.num_classes):
        return ""
    return (
        f"holds {field.name} from {low:.0f} to {high:.0f}, but the model knows {field.num_classes} classes; "
        f"set model.num_classes to {high + 1:.0f} or change data."
    )


def to_device(
    batch: Mapping[str, Tensor],
    fields: Sequence[BatchField],
    columns: Mapping[str, Column],
    device: torch.device | str,
) -> dict[str, Tensor]:
    """The batch as a model takes it: moved in the store's dtype, then converted on the device.

    A field with a `value_range` is mapped linearly from the column's range onto it, in float32; the rest is cast.
    """
    ready = {}
    for field in fields:
        moved = batch[field.name].to(device, non_blocking=True).to(getattr(torch, field.dtype))
        source, target = columns[field.name].value_range, field.value_range
        if target is not None and source is not None:
            # one division and one addition keep both ends of the range exact: x/127.5 - 1 for bytes onto (-1, 1)
            ratio = (source[1] - source[0]) / (target[1] - target[0])
            moved = moved.div(ratio).add_(target[0] - source[0] / ratio)
        ready[field.name] = moved
    return ready


def held_out_batches(
    view: View, fields: Sequence[BatchField], size: int, limit: int | None = None
) -> Iterator[dict[str, Tensor]]:
    """The view's first `limit` rows (None: all), `size` at a time, in the store's dtype: in the view's own order, where
    there are several buckets bucket by bucket.

    The last batch (of a bucket) may be smaller. Nothing is drawn: two calls give the same batches.
    """
    for piece in view.pieces(size, limit):
        yield {field.name: view.gather(field.name, piece.indices) for field in fields}
