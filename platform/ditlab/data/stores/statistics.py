"""Running statistics of a column, updated batch by batch."""

import hashlib
import math

import numpy as np

from ditlab.data.stores.manifest import Column, ColumnStatistics, StoredColumn
from ditlab.errors import UserError


class RunningStatistics:
    """Count, extrema, mean, standard deviation, class counts and content hash of a column that arrives in batches.

    Means and squared deviations of batches are merged as in Chan, Golub and LeVeque (1979), which loses no digits to
    large means.
    """

    def __init__(self, name: str, column: Column):
        self._name = name
        self._column = column
        self._hash = hashlib.sha256()
        self._count = 0
        self._min, self._max = math.inf, -math.inf
        self._mean, self._squares = 0.0, 0.0
        self._class_counts = None if column.num_classes is None else np.zeros(column.num_classes, np.int64)

    def add(self, values: np.ndarray) -> None:
        """Add a batch, (rows, *shape), C-contiguous. Raises UserError for values that the column cannot hold."""
        low, high = float(values.min()), float(values.max())
        self._refuse_bad_values(low, high)
        self._min, self._max = min(self._min, low), max(self._max, high)
        mean = float(values.mean(dtype=np.float64))
        squares = float(values.var(dtype=np.float64)) * values.size
        total = self._count + values.size
        delta = mean - self._mean
        self._squares += squares + delta * delta * self._count * values.size / total
        self._mean += delta * values.size / total
        self._count = total
        if self._class_counts is not None:
            self._class_counts += np.bincount(values.reshape(-1), minlength=len(self._class_counts))
        self._hash.update(values.astype(values.dtype.newbyteorder("<"), copy=False).data)

    def _refuse_bad_values(self, low: float, high: float) -> None:
        if not (math.isfinite(low) and math.isfinite(high)):
            raise UserError(f"column '{self._name}' holds NaN or infinities; a store takes finite numbers only.")
        classes, bounds = self._column.num_classes, self._column.value_range
        if classes is not None and (low < 0 or high >= classes):
            raise UserError(
                f"column '{self._name}' holds classes {low:.0f} to {high:.0f}, but num_classes={classes} allows "
                f"0 to {classes - 1}; the source is damaged or num_classes is wrong."
            )
        if bounds is not None and (low < bounds[0] or high > bounds[1]):
            raise UserError(
                f"column '{self._name}' holds values {low:g} to {high:g} outside its value_range {bounds}; "
                "the source is damaged or value_range is wrong."
            )

    def stored_column(self) -> StoredColumn:
        """Return the column with the statistics of all batches so far."""
        statistics = ColumnStatistics(
            count=self._count,
            min=self._min,
            max=self._max,
            mean=self._mean,
            std=math.sqrt(self._squares / self._count),
            class_counts=None if self._class_counts is None else tuple(int(n) for n in self._class_counts),
        )
        return StoredColumn(**self._column.model_dump(), statistics=statistics, sha256=self._hash.hexdigest())
