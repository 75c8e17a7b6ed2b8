"""Blocks of a store: Arrow messages, over whose bytes columns are read without a copy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from blake3 import blake3

from ditlab.data.stores.manifest import Column, Columns

PIECE_DIGEST_BYTES = 16


def arrow_schema(columns: Columns) -> pa.Schema:
    """Return the schema of the columns' shards."""
    fields = []
    for name, column in columns.items():
        element = pa.from_numpy_dtype(column.stored_dtype)
        if column.shape:
            arrow_type = pa.fixed_shape_tensor(element, column.shape)
        else:
            arrow_type = element
        meaning = column.model_dump_json(exclude={"shape"})  # part of Arrow's type
        fields.append(
            pa.field(name, arrow_type, nullable=False, metadata={"ditlab.column": meaning})
        )
    return pa.schema(fields)


def arrow_array(arrow_type: pa.DataType, values: np.ndarray) -> pa.Array:
    """Return rows, C-contiguous, as an Arrow array over their memory: `pa.array` would import
    pandas, a third of a second."""
    is_tensor = isinstance(arrow_type, pa.FixedShapeTensorType)
    element = arrow_type.value_type if is_tensor else arrow_type
    elements = pa.Array.from_buffers(element, values.size, [None, pa.py_buffer(values)])
    if not is_tensor:
        return elements
    listed = pa.FixedSizeListArray.from_arrays(elements, type=arrow_type.storage_type)
    return pa.ExtensionArray.from_storage(arrow_type, listed)


def digests(arrays: Mapping[str, np.ndarray]) -> tuple[bytes, ...]:
    """Return the SHA-256 of each column's elements, sorted by name."""
    return tuple(hashlib.sha256(values.data).digest() for values in _ordered(arrays))


def _ordered(arrays: Mapping[str, np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the columns sorted by name, contiguous and little-endian."""
    for name in sorted(arrays):
        values = arrays[name]
        yield np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))


def piece_digest(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the digest of some rows: the first 16 bytes of BLAKE3 over each column's elements,
    sorted by name.
    """
    whole = blake3()
    for values in _ordered(arrays):
        whole.update(values.reshape(-1).view(np.uint8).data)
    return whole.digest(length=PIECE_DIGEST_BYTES)


def read_block(
    content: pa.Buffer, columns: Columns, schema: pa.Schema, rows: int
) -> dict[str, np.ndarray]:
    """Return a block's columns, (rows, *shape) each, over the memory of its message.

    Raises pyarrow's errors, KeyError for a missing column, and ValueError for bytes that are no
    such message and for another number of rows or elements, or a null.
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
        array = batch.column(name)
        dtype = column.stored_dtype
        num = rows * column.row_elements
        elements = array.storage.values if column.shape else array
        if len(elements) != num:
            raise ValueError(f"{len(elements):,} elements, not {num:,}")
        if elements.null_count or array.null_count:
            raise ValueError(f"a null in column {name}")
        values = np.frombuffer(elements.buffers()[1], dtype, num, elements.offset * dtype.itemsize)
        found[name] = values.reshape(rows, *column.shape)
    return found


def checked(name: str, column: Column, values: Any) -> np.ndarray:
    """Return a column's rows, an array or a tensor of its own dtype, as a C-contiguous array of its
    stored dtype.
    """
    array: np.ndarray = values
    if not isinstance(values, np.ndarray):
        array = values.detach().cpu().numpy()
    if array.shape[1:] != column.shape or array.dtype != np.dtype(column.dtype):
        raise ValueError(
            f"column '{name}' takes (rows, *{column.shape}) {column.dtype}, got {array.shape} "
            f"{array.dtype.name}"
        )
    return np.ascontiguousarray(array).view(column.stored_dtype)
