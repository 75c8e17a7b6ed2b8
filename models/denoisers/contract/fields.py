"""The tensors of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ANY = -1
"""Size, in a field's shape, of an axis that may differ from batch to batch."""


@dataclass(frozen=True)
class FieldKnobs:
    """Settings that a field's sizes follow, as dotted paths in an experiment: `model.image_size`. Empty: none."""

    shape: tuple[str, ...] = ()
    """Setting of each axis of the shape; (): no axis follows one."""
    num_classes: str = ""
    """Setting of `num_classes`."""
    multiple_of: str = ""
    """Setting of `multiple_of`."""
    at_most: str = ""
    """Setting of `at_most`."""


@dataclass(frozen=True)
class BatchField:
    """One tensor of every batch of a family."""

    name: str
    """Column of the data store and key of the batch."""
    shape: tuple[int, ...]
    """Per sample; () is a scalar. An axis of size ANY is as long as the data's."""
    dtype: Literal["float32", "int64", "bool"]
    value_range: tuple[float, float] | None = None
    """Range that the store's value range is mapped to linearly: (-1, 1) for images. None keeps the store's values."""
    unit: str = ""
    """Meaning of the numbers, for people: `pixel intensity`, `class index`."""
    num_classes: int | None = None
    """Number of classes of a class index: values lie in [0, num_classes)."""
    multiple_of: int = 1
    """Divisor of the sizes of ANY axes, such as a patch size."""
    at_most: int | None = None
    """Largest size of an ANY axis; None: any."""
    knobs: FieldKnobs = FieldKnobs()
    """Settings to change where data do not fit."""
