"""Batches of any size cut into the blocks of a store."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ditlab.data.stores.manifest import Column


class BlockCutter:
    """Cutter of batches of any size into blocks of `rows_per_block` rows, in the columns' stored dtypes.

    Blocks may share memory: each is to be used up before the next.
    """

    def __init__(self, columns: Mapping[str, Column], rows_per_block: int):
        self._columns, self._size = columns, rows_per_block
        self._buffers: dict[str, np.ndarray] = {}
        self._filled = 0

    def add(self, batch: Mapping[str, Any]) -> Iterator[dict[str, np.ndarray]]:
        """Take in rows, every column as (rows, *shape) in its own dtype; yield the blocks that are full."""
        arrays = {name: checked(name, column, batch[name]) for name, column in self._columns.items()}
        if set(batch) != set(arrays) or len({len(values) for values in arrays.values()}) != 1:
            raise ValueError(f"a batch needs exactly the columns {sorted(arrays)}, all of one length")
        start, rows = 0, len(next(iter(arrays.values())))
        while start < rows:
            taken = min(rows - start, self._size - self._filled)
            part = {name: values[start : start + taken] for name, values in arrays.items()}
            start += taken
            if taken == self._size:  # a whole block needs no copy
                yield part
                continue
            if not self._buffers:
                self._buffers = {n: np.empty((self._size, *c.shape), c.stored_dtype) for n, c in self._columns.items()}
            for name, values in part.items():
                self._buffers[name][self._filled : self._filled + taken] = values
            self._filled += taken
            if self._filled == self._size:
                self._filled = 0
                yield self._buffers

    def rest(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield the last rows, which fill no block; nothing where there are none."""
        if self._filled:
            yield {name: values[: self._filled] for name, values in self._buffers.items()}
            self._filled = 0


def checked(name: str, column: Column, values: Any) -> np.ndarray:
    """Return a column's rows, an array or a tensor of its own dtype, as a C-contiguous array of its stored dtype."""
    array = as_array(values)
    if array.shape[1:] != column.shape or array.dtype.name != column.dtype:
        raise ValueError(
            f"column '{name}' takes (rows, *{column.shape}) {column.dtype}, got {array.shape} {array.dtype.name}"
        )
    return np.ascontiguousarray(array).view(column.stored_dtype)


def as_array(values: Any) -> np.ndarray:
    """Return an array, or a tensor on any device, as an array, without a copy where that can be."""
    array: np.ndarray = values if isinstance(values, np.ndarray) else values.detach().cpu().numpy()
    return array
