"""Blocks: the record batches of a shard, as Arrow messages."""

import hashlib
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from ditlab.data.stores.arrow_file import is_compressed
from ditlab.data.stores.manifest import Column


def arrow_schema(columns: Mapping[str, Column]) -> pa.Schema:
    """Return the schema of the columns' shards."""
    return pa.schema([_field(name, column) for name, column in columns.items()])


def record_batch(arrays: Mapping[str, np.ndarray], columns: Mapping[str, Column], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows, (rows, *shape) of each column's stored dtype and C-contiguous, as a record batch without a copy."""
    values = [
        pa.FixedShapeTensorArray.from_numpy_ndarray(arrays[name]) if column.shape else pa.array(arrays[name])
        for name, column in columns.items()
    ]
    return pa.record_batch(values, schema=schema)


def digests(arrays: Mapping[str, np.ndarray]) -> tuple[bytes, ...]:
    """Return the SHA-256 of each column's elements, sorted by name."""
    return tuple(hashlib.sha256(little_endian(arrays[name]).data).digest() for name in sorted(arrays))


def little_endian(values: np.ndarray) -> np.ndarray:
    """Return C-contiguous values in little-endian order, without a copy where they are."""
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))


def read_block(
    content: pa.Buffer, columns: Mapping[str, Column], schema: pa.Schema, rows: int
) -> dict[str, np.ndarray]:
    """Return a block's columns, (rows, *shape) each, over the memory of its message.

    Raises pyarrow's errors and ValueError for bytes that are no such message, or whose columns are compressed: a few
    kilobytes could unpack to all of the memory.
    """
    message = pa.ipc.read_message(content)
    if message.type != "record batch":
        raise ValueError(f"a {message.type} in the place of rows")
    if is_compressed(message.metadata.to_pybytes()):
        raise ValueError("its columns are compressed, as no store's are")
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate()
    return batch_columns(batch, columns, rows)


def batch_columns(batch: pa.RecordBatch, columns: Mapping[str, Column], rows: int) -> dict[str, np.ndarray]:
    """Return the columns of a record batch, (rows, *shape) each, without a copy.

    Raises ValueError for another number of rows or elements, and KeyError for a missing column.
    """
    if batch.num_rows != rows:
        raise ValueError(f"{batch.num_rows:,} rows, not {rows:,}")
    return {name: _values(batch.column(name), column, rows) for name, column in columns.items()}


def _values(array: pa.Array, column: Column, rows: int) -> np.ndarray:
    elements = array.storage.flatten() if column.shape else array
    if len(elements) != rows * column.row_elements or elements.null_count:
        raise ValueError(f"{len(elements):,} elements, not {rows * column.row_elements:,}")
    values = np.frombuffer(
        elements.buffers()[1], column.stored_dtype, len(elements), elements.offset * column.stored_dtype.itemsize
    )
    return values.reshape(rows, *column.shape)


def _field(name: str, column: Column) -> pa.Field:
    element = pa.from_numpy_dtype(column.stored_dtype)
    arrow_type = pa.fixed_shape_tensor(element, column.shape) if column.shape else element
    meaning = column.model_dump_json(exclude={"shape"})  # part of Arrow's type
    return pa.field(name, arrow_type, nullable=False, metadata={"ditlab.column": meaning})
