"""Statistics of a column that arrives in batches, or in parts that are merged."""

import math
from dataclasses import dataclass

import numpy as np

from ditlab.data.stores.manifest import Column, ColumnStatistics, ManifestRecord
from ditlab.errors import UserError

HISTOGRAM_BYTES = 2**16
"""Bytes from which their histogram is quicker than passes over the numbers: 2 ms of 4 MiB, and 14 ms."""


class Moments(ManifestRecord):
    """Count, extrema, mean, squared deviations and class counts of some rows of a column.

    Means and squared deviations are merged as in Chan, Golub and LeVeque (1979), which loses no digits to large means.
    """

    count: int = 0
    """Number of elements."""
    min: float = 0.0
    max: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared deviations from the mean."""
    class_counts: tuple[int, ...] | None = None
    """Number of elements by class, for columns with `num_classes`."""

    def merge(self, other: "Moments") -> "Moments":
        """Return the moments of these rows and others."""
        if not self.count:
            return other
        total = self.count + other.count
        delta = other.mean - self.mean
        counts = self.class_counts
        if counts is not None and other.class_counts is not None:
            counts = tuple(np.add(counts, other.class_counts).tolist())
        return Moments(
            count=total,
            min=min(self.min, other.min),
            max=max(self.max, other.max),
            mean=self.mean + delta * other.count / total,
            squares=self.squares + other.squares + delta * delta * self.count * other.count / total,
            class_counts=counts,
        )

    def statistics(self) -> ColumnStatistics:
        """Return the statistics of a store's column."""
        return ColumnStatistics(
            count=self.count,
            min=self.min,
            max=self.max,
            mean=self.mean,
            std=math.sqrt(self.squares / self.count),
            class_counts=self.class_counts,
        )


def measure(name: str, column: Column, values: np.ndarray) -> Moments:
    """Return the moments of rows, (rows, *shape), C-contiguous, one element at least.

    Raises UserError for values that the column cannot hold.
    """
    if values.dtype == np.uint8 and values.nbytes >= HISTOGRAM_BYTES:
        found = _of_bytes(values)
    else:
        found = _Range(float(values.min()), float(values.max()))
        _refuse_bad_values(name, column, found.low, found.high)
        found.mean = float(values.mean(dtype=np.float64))
        found.squares = float(values.var(dtype=np.float64)) * values.size
    _refuse_bad_values(name, column, found.low, found.high)
    counts = None
    if column.num_classes is not None:
        counts = tuple(np.bincount(values.reshape(-1), minlength=column.num_classes).tolist())
    return Moments(
        count=values.size, min=found.low, max=found.high, mean=found.mean, squares=found.squares, class_counts=counts
    )


@dataclass
class _Range:
    low: float
    high: float
    mean: float = 0.0
    squares: float = 0.0


def _of_bytes(values: np.ndarray) -> _Range:
    """Measure bytes by their histogram, which Pillow counts five times faster than NumPy."""
    from PIL import Image

    flat = values.reshape(-1)
    width = 2**12
    whole = flat.size - flat.size % width
    counts = np.array(Image.frombuffer("L", (width, whole // width), flat[:whole], "raw", "L", 0, 1).histogram())
    counts += np.bincount(flat[whole:], minlength=256)
    numbers = np.arange(256, dtype=np.float64)
    mean = float(counts @ numbers) / flat.size
    held = np.flatnonzero(counts)
    return _Range(float(held[0]), float(held[-1]), mean, float(counts @ (numbers - mean) ** 2))


def _refuse_bad_values(name: str, column: Column, low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UserError(f"column '{name}' holds NaN or infinities; a store takes finite numbers only.")
    classes, bounds = column.num_classes, column.value_range
    if classes is not None and (low < 0 or high >= classes):
        raise UserError(
            f"column '{name}' holds classes {low:.0f} to {high:.0f}, but num_classes={classes} allows "
            f"0 to {classes - 1}; the source is damaged or num_classes is wrong."
        )
    if bounds is not None and (low < bounds[0] or high > bounds[1]):
        raise UserError(
            f"column '{name}' holds values {low:g} to {high:g} outside its value_range {bounds}; "
            "the source is damaged or value_range is wrong."
        )
