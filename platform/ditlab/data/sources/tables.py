"""Parquet files and Arrow streams or files, read some rows at a time by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ditlab.data.source_files import READ_BYTES, SourceFile, open_source, read_source
from ditlab.data.source_files import UNREADABLE as UNREADABLE_FILE
from ditlab.errors import UserError, nearest
from ditlab.storage.plain_files import parse_json

if TYPE_CHECKING:
    from ditlab.data.import_blocks import InputBlock

UNREADABLE = (*UNREADABLE_FILE, pa.ArrowException)
"""Errors of the libraries that read tables, and other files of a source."""
_FILE = b"ARROW1\0\0"
"""First bytes of Arrow's file format, whose messages are those of a stream."""


def parquet_batches(
    file: SourceFile, columns: Mapping[str, str], rows: int, groups: range | None = None
) -> Iterator[pa.RecordBatch]:
    """Iterate over columns of a file (by the flag that names each), at most `rows` rows at a time, of some row groups.

    Raises UserError for a column that is not there, and errors of `UNREADABLE`, after the rows before.
    """
    with _opened(file) as source, pq.ParquetFile(source, buffer_size=READ_BYTES, pre_buffer=False) as table:
        check_columns(file, columns, table.schema_arrow.names)
        chosen = list(columns.values())
        for group in range(table.num_row_groups) if groups is None else groups:
            for batch in table.iter_batches(rows, row_groups=[group], columns=chosen, use_threads=False):
                yield batch.select(chosen)


def parquet_rows(file: SourceFile) -> list[int]:
    """Return the number of rows of each of a file's row groups. Raises errors of `UNREADABLE`."""
    with _opened(file) as source:
        metadata = pq.read_metadata(source)
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def arrow_rows(file: SourceFile) -> list[int]:
    """Return the number of rows of each of a file's record batches. Raises errors of `UNREADABLE`."""
    with _opened(file) as source:
        return [batch.num_rows for batch in _record_batches(file, source)]


def arrow_batches(
    file: SourceFile, columns: Mapping[str, str], start: int = 0, stop: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Iterate over columns of a file (by the flag that names each), a record batch at a time, from `start` to `stop`.

    Raises UserError for a column that is not there, and errors of `UNREADABLE`, after the batches before.
    """
    with _opened(file) as source:
        for found in _record_batches(file, source, columns, start, stop):
            batch = found.select(list(columns.values()))
            for column in batch.columns:  # its offsets, which Arrow's readers trust, and no text that is not UTF-8
                if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
                    column = column.view(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
                column.validate(full=True)
            yield batch


def table_schema(file: SourceFile, kind: str) -> pa.Schema:
    """Return the schema of a Parquet or Arrow file. Raises errors of `UNREADABLE`."""
    with _opened(file) as source:
        if kind == "parquet":
            return pq.read_schema(source)
        stream = pa.memory_map(str(source)) if file.has_path else source
        stream.seek(len(_FILE) if stream.read(len(_FILE)) == _FILE else 0)
        return pa.ipc.open_stream(stream).schema


def other_columns(block: InputBlock, column: str) -> str:
    """Suggest the column of a block's tables that is nearest to one of them; list the others where none is near."""
    names: list[str] = []
    if block.kind == "mds":
        names = block.detail[0]["column_names"]
    else:
        with suppress(*UNREADABLE):
            names = table_schema(block.files[0], block.kind).names
    return nearest(column, [name for name in names if name != column])


def named_classes(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the names of the classes of columns of numbers, as Hugging Face's `datasets` writes them (ClassLabel)."""
    try:
        features = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        named = {name: each["names"] for name, each in features.items() if each.get("_type") == "ClassLabel"}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: tuple(map(str, names)) for name, names in named.items() if isinstance(names, list)}


def check_columns(file: SourceFile, columns: Mapping[str, str], there: Sequence[str]) -> None:
    """Raise UserError for a column (by the flag that names each) that a file does not have."""
    for flag, column in columns.items():
        if column not in there:
            raise UserError(f"{file.place} has no column '{column}'; {nearest(column, list(there))} Give {flag}.")


def _record_batches(
    file: SourceFile, source: Any, columns: Mapping[str, str] | None = None, start: int = 0, stop: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Iterate over record batches of an open file, of which some columns are decoded; None: one, to count its rows.

    A file behind a URI, or one that has lost its end, which says where its batches are, is read as a stream.
    """
    stream = pa.memory_map(str(source)) if file.has_path else source
    if file.is_remote and not file.in_zip:
        stream = pa.PythonFile(source, mode="r")
    first = len(_FILE) if stream.read(len(_FILE)) == _FILE else 0
    stream.seek(first)
    schema = pa.ipc.open_stream(stream).schema
    if columns is None:  # numbers cost less than text and images
        fields = [number for number, field in enumerate(schema) if pa.types.is_primitive(field.type)][:1] or [0]
    else:
        check_columns(file, columns, schema.names)
        fields = [schema.names.index(column) for column in columns.values()]
    options = pa.ipc.IpcReadOptions(included_fields=sorted(set(fields)))
    if first and (file.has_path or file.in_zip):
        with suppress(pa.ArrowException, OSError):
            reader = pa.ipc.open_file(stream, options=options)
            return map(reader.get_batch, range(reader.num_record_batches)[start:stop])
    stream.seek(first)
    return islice(pa.ipc.open_stream(stream, options=options), start, stop)


@contextmanager
def _opened(file: SourceFile) -> Iterator[Any]:
    """Open a file for pyarrow: gives its path, or its content as a file."""
    if file.in_zip:  # its reader wants to begin at the end
        yield pa.BufferReader(read_source(file))
    elif file.is_remote:
        with open_source(file) as source:
            yield source
    else:
        yield file.path
