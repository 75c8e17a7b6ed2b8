"""Blocks of a store: Arrow messages, over whose bytes columns are read without a copy, cut from batches of any size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ditlab.data.stores.manifest import Column


def arrow_schema(columns: Mapping[str, Column]) -> pa.Schema:
    """Return the schema of the columns' shards."""
    fields = []
    for name, column in columns.items():
        element = pa.from_numpy_dtype(column.stored_dtype)
        arrow_type = pa.fixed_shape_tensor(element, column.shape) if column.shape else element
        meaning = column.model_dump_json(exclude={"shape"})  # part of Arrow's type
        fields.append(pa.field(name, arrow_type, nullable=False, metadata={"ditlab.column": meaning}))
    return pa.schema(fields)


def digests(arrays: Mapping[str, np.ndarray]) -> tuple[bytes, ...]:
    """Return the SHA-256 of each column's elements, sorted by name."""
    ordered = (arrays[name].astype(arrays[name].dtype.newbyteorder("<"), copy=False) for name in sorted(arrays))
    return tuple(hashlib.sha256(np.ascontiguousarray(values).data).digest() for values in ordered)


def read_block(
    content: pa.Buffer, columns: Mapping[str, Column], schema: pa.Schema, rows: int
) -> dict[str, np.ndarray]:
    """Return a block's columns, (rows, *shape) each, over the memory of its message.

    Raises pyarrow's errors, KeyError for a missing column, and ValueError for bytes that are no such message and for
    another number of rows or elements.
    """
    message = pa.ipc.read_message(content)
    if message.type != "record batch":
        raise ValueError(f"a {message.type} in the place of rows")
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate()
    if batch.num_rows != rows:
        raise ValueError(f"{batch.num_rows:,} rows, not {rows:,}")
    found = {}
    for name, column in columns.items():
        array, dtype, num = batch.column(name), column.stored_dtype, rows * column.row_elements
        elements = array.storage.flatten() if column.shape else array
        if len(elements) != num or elements.null_count:
            raise ValueError(f"{len(elements):,} elements, not {num:,}")
        values = np.frombuffer(elements.buffers()[1], dtype, num, elements.offset * dtype.itemsize)
        found[name] = values.reshape(rows, *column.shape)
    return found


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
    array: np.ndarray = values if isinstance(values, np.ndarray) else values.detach().cpu().numpy()
    if array.shape[1:] != column.shape or array.dtype.name != column.dtype:
        raise ValueError(
            f"column '{name}' takes (rows, *{column.shape}) {column.dtype}, got {array.shape} {array.dtype.name}"
        )
    return np.ascontiguousarray(array).view(column.stored_dtype)
