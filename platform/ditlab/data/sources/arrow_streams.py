"""Arrow streams and files, read a record batch at a time: what the Hugging Face library `datasets` saves to a disk.

Folders that it has saved (`save_to_disk`) are found without the library.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ditlab.data.block_imports.source_files import (
    READ_BYTES,
    BadRecord,
    SourceFile,
    SourceListing,
    open_source,
    read_source,
)
from ditlab.errors import UserError, first_line, nearest
from ditlab.storage.plain_files import MIB, parse_json

if TYPE_CHECKING:
    import pyarrow as pa


STATE, SPLITS = "state.json", "dataset_dict.json"
_MOST_BYTES = 64 * MIB
MOST_BYTES = 1024 * MIB
"""Most bytes of a record batch: `datasets` writes 1,000 rows a batch, of images about 100 MiB."""
HEAD_READ_BYTES = 2**16
"""Bytes of a request behind a URI where heads alone are read."""
_MOST_HEAD = 16 * MIB
_FILE = b"ARROW1\0\0"
"""First bytes of Arrow's file format, whose messages are those of a stream."""
_CONTINUED = b"\xff\xff\xff\xff"
_DICTIONARY, _RECORD_BATCH = 2, 3
_KIND, _HEADER, _BODY = 1, 2, 3
_ROWS, _COMPRESSION = 0, 3
"""Places of fields in the tables `Message` and `RecordBatch` (apache/arrow, Message.fbs)."""


def saved_files(state: SourceFile, files: Mapping[str, SourceFile]) -> list[SourceFile] | None:
    """Return the data files that a `state.json` names, in its order; None for another program's file of this name.

    Raises UserError for a file that is not there, and for rows in an order of their own, which older versions wrote.
    """
    content = _json(state)
    named = content.get("_data_files") if isinstance(content, dict) else None
    if not isinstance(named, list):
        return None
    if content.get("_indices_data_files") or content.get("_indices_files"):
        raise UserError(f"{state.place} orders its rows by a file of indices; save it again with a newer `datasets`.")
    found = []
    for each in named:
        name = str(each.get("filename") if isinstance(each, dict) else each)
        file = files.get(str(PurePosixPath(state.name).parent / name))
        if file is None:
            raise UserError(f"{state.place} names {name}, which is not there; copy the folder whole.")
        found.append(file)
    return found


def refuse_splits(knob: str, listing: SourceListing) -> None:
    """Raise UserError for a folder of several data sets by split, with their names: one is read."""
    splits = next((file for file in listing.files if file.name == SPLITS), None)
    if splits is None:
        return
    content = _json(splits)
    names = content.get("splits") if isinstance(content, dict) else None
    if isinstance(names, list) and names:
        listed = ", ".join(map(str, names))
        one = f"{knob}={listing.source.rstrip('/')}/{names[0]}"
        raise UserError(f"{knob}={listing.source} holds splits ({listed}); name one of them, such as {one}.")


def _json(file: SourceFile) -> Any:
    try:
        return parse_json(read_source(file, _MOST_BYTES))
    except (OSError, ValueError) as error:
        raise UserError(f"{file.place} cannot be read ({first_line(error)}); copy it again.") from error


class BatchPlace(NamedTuple):
    """Place of a record batch in its file."""

    start: int
    """First byte of its message."""
    stop: int
    """End of its message."""
    rows: int


class _Message(NamedTuple):
    kind: int
    place: BatchPlace
    compressed: bool


def batch_places(file: SourceFile) -> list[BatchPlace]:
    """Return the places of a file's record batches, by their heads alone. Raises BadRecord for a damaged file."""
    with _reading(file, HEAD_READ_BYTES) as source:
        return [message.place for message in _messages(file, source, _first(source), file.size)][1:]


def arrow_batches(
    file: SourceFile, columns: Mapping[str, str], start: int = 0, stop: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Iterate over columns of a file (by the flag that names each), a record batch at a time.

    `start`, `stop`: bytes between which the batches begin, as `batch_places` gives them; 0, None: all. Raises
    UserError for a column that is not there, and BadRecord, after the batches before, for a file that is damaged.
    """
    import pyarrow as pa

    with _reading(file) as source:
        first = _first(source)
        head = next(iter(_messages(file, source, first, file.size)), None)
        if head is None:
            raise ValueError("it ends before its schema")
        schema = pa.ipc.read_schema(pa.py_buffer(_content(source, head.place)))
        chosen = list(columns.values())
        for flag, column in columns.items():
            if column not in schema.names:
                raise UserError(f"{file.place} has no column '{column}'; {nearest(column, schema.names)} Give {flag}.")
        for message in _messages(file, source, max(start, head.place.stop), file.size if stop is None else stop):
            if message.kind != _RECORD_BATCH or message.compressed:
                raise ValueError("its columns are dictionaries, or compressed; save it again with `save_to_disk`")
            batch = pa.ipc.read_record_batch(pa.py_buffer(_content(source, message.place)), schema).select(chosen)
            for column in batch.columns:
                _check(column)
            yield batch


def _check(column: pa.Array) -> None:
    """Check a column's offsets, which readers trust. Text that is not UTF-8 is no damage of the file."""
    import pyarrow as pa

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.view(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
    column.validate(full=True)


@contextmanager
def _reading(file: SourceFile, buffer: int = READ_BYTES) -> Iterator[BinaryIO]:
    """Open a file, and turn the errors of reading it in the body into BadRecord."""
    import pyarrow as pa

    try:
        with open_source(file, buffer=buffer) as source:
            yield source
    except (pa.ArrowException, OSError, MemoryError, ValueError, struct.error) as error:
        reason = f"no Arrow file that can be read ({first_line(error)})"
        raise BadRecord(f"{file.place} is {reason}; copy it again.", file.place, reason) from error


def _first(source: BinaryIO) -> int:
    return len(_FILE) if source.read(len(_FILE)) == _FILE else 0


def _messages(file: SourceFile, source: BinaryIO, place: int, stop: int) -> Iterator[_Message]:
    """Iterate over the messages that begin in [place, stop), by their heads."""
    while place < stop:
        source.seek(place)
        mark = source.read(8)
        if not mark:
            return
        prefix = 8 if mark[:4] == _CONTINUED else 4  # 4: before Arrow 0.15
        (size,) = struct.unpack("<i", mark[prefix - 4 : prefix])
        if size == 0:
            return
        if not 0 < size <= _MOST_HEAD:
            raise ValueError(f"a message's head of {size:,} bytes")
        source.seek(place + prefix)
        message = _parse(source.read(size), place, place + prefix + size)
        if message.place.stop > file.size:
            raise ValueError("it ends within a message")
        if message.place.stop - place > MOST_BYTES:
            raise ValueError(f"a record batch of {message.place.stop - place:,} bytes, more than {MOST_BYTES:,}")
        yield message
        place = message.place.stop


def _parse(head: bytes, start: int, body: int) -> _Message:
    (table,) = struct.unpack_from("<I", head)
    kind, size, header = (_field(head, table, number) for number in (_KIND, _BODY, _HEADER))
    length = 0 if size is None else int(struct.unpack_from("<q", head, size)[0])
    if kind is None or header is None or length < 0:
        raise ValueError("a message without kind or length")
    number, rows, compressed = head[kind], 0, False
    if number == _RECORD_BATCH:
        batch = header + int(struct.unpack_from("<I", head, header)[0])
        count = _field(head, batch, _ROWS)
        rows = 0 if count is None else int(struct.unpack_from("<q", head, count)[0])
        compressed = _field(head, batch, _COMPRESSION) is not None
    return _Message(number, BatchPlace(start, body + length, rows), compressed)


def _field(text: bytes, table: int, number: int) -> int | None:
    """Return the place of a FlatBuffers table's field; None where the table does not have it."""
    fields = table - int(struct.unpack_from("<i", text, table)[0])
    entry = 4 + 2 * number
    if fields < 0 or entry + 2 > int(struct.unpack_from("<H", text, fields)[0]):
        return None
    place = int(struct.unpack_from("<H", text, fields + entry)[0])
    return table + place if place else None


def _content(source: BinaryIO, place: BatchPlace) -> bytes:
    source.seek(place.start)
    content = source.read(place.stop - place.start)
    if len(content) != place.stop - place.start:
        raise ValueError("it ends within a message")
    return content
