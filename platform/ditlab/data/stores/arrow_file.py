"""Record batch of an Arrow IPC file, whose columns are the file's own bytes: nothing is unpacked or copied."""

import struct

import pyarrow as pa

_MAGIC = b"ARROW1\0\0"
_RECORD_BATCH = "record batch"
_HEADER, _COMPRESSION = 2, 3
"""Places of fields in the tables `Message` and `RecordBatch` (apache/arrow, Message.fbs)."""


def first_batch(whole: pa.Buffer) -> pa.RecordBatch:
    """Return the first record batch of a file that is in memory, or mapped.

    Raises ValueError for a file with compressed columns, which DiTLab writes none of: a few kilobytes could unpack to
    all of the memory. Raises pyarrow's errors for what is no Arrow file.
    """
    if whole.slice(0, len(_MAGIC)).to_pybytes() != _MAGIC:
        raise ValueError("no Arrow IPC file")
    messages = pa.ipc.MessageReader.open_stream(whole.slice(len(_MAGIC)))
    try:
        schema = pa.ipc.read_schema(messages.read_next_message())
        message = messages.read_next_message()
    except StopIteration:
        raise ValueError("it ends before its rows") from None
    if message.type != _RECORD_BATCH:
        raise ValueError(f"a {message.type} in the place of the rows")
    if is_compressed(message.metadata.to_pybytes()):
        raise ValueError("its columns are compressed, as no store's are")
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate()
    return batch


def is_compressed(metadata: bytes) -> bool:
    """Return True if a message's record batch has compressed columns, by its FlatBuffers table.

    Raises ValueError for bytes that are no such table.
    """
    try:
        message = _offset(metadata, 0)
        header = _field(metadata, message, _HEADER)
        if header is None:
            raise ValueError("a message without a header")
        return _field(metadata, _offset(metadata, header), _COMPRESSION) is not None
    except struct.error:
        raise ValueError("a damaged message") from None


def _offset(text: bytes, place: int) -> int:
    """Return the place to which the 32-bit offset at a place leads."""
    return place + int(struct.unpack_from("<I", text, place)[0])


def _field(text: bytes, table: int, number: int) -> int | None:
    """Return the place of a table's field; None where the table does not have it."""
    fields = table - int(struct.unpack_from("<i", text, table)[0])
    size = int(struct.unpack_from("<H", text, fields)[0])
    entry = 4 + 2 * number
    if fields < 0 or entry + 2 > size:
        return None
    return table + place if (place := int(struct.unpack_from("<H", text, fields + entry)[0])) else None
