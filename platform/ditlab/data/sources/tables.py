"""Parquet files, read some rows at a time by pyarrow."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ditlab.data.source_files import READ_BYTES, UNREADABLE, SourceFile, open_source, read_source
from ditlab.errors import UserError, nearest
from ditlab.storage.plain_files import parse_json


def parquet_batches(
    file: SourceFile, columns: Mapping[str, str], rows: int, groups: range | None = None
) -> Iterator[pa.RecordBatch]:
    """Iterate over columns of a file (by the flag that names each), at most `rows` rows at a time,
    of some row groups.

    Raises UserError for a column that is not there, and errors of `UNREADABLE`, after the rows
    before.
    """
    with (
        _opened(file) as source,
        pq.ParquetFile(source, buffer_size=READ_BYTES, pre_buffer=False) as table,
    ):
        check_columns(file, columns, table.schema_arrow.names)
        chosen = list(columns.values())
        if groups is None:
            groups = range(table.num_row_groups)
        for group in groups:
            for batch in table.iter_batches(
                rows, row_groups=[group], columns=chosen, use_threads=False
            ):
                yield batch.select(chosen)


def parquet_rows(file: SourceFile) -> list[int]:
    """Return the number of rows of each of a file's row groups. Raises errors of `UNREADABLE`."""
    with _opened(file) as source:
        metadata = pq.read_metadata(source)
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def table_schema(file: SourceFile) -> pa.Schema:
    """Return the schema of a file. Raises errors of `UNREADABLE`."""
    with _opened(file) as source:
        return pq.read_schema(source)


def other_columns(file: SourceFile, column: str) -> str:
    """Suggest the column of a file that is nearest to one of them; list the others where none is
    near.
    """
    names: list[str] = []
    with suppress(*UNREADABLE):
        names = table_schema(file).names
    return nearest(column, [name for name in names if name != column])


def named_classes(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the names of the classes of columns of numbers, as Hugging Face's `datasets` writes
    them (ClassLabel).
    """
    try:
        features = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"))["info"][
            "features"
        ]
        named = {
            name: each["names"]
            for name, each in features.items()
            if each.get("_type") == "ClassLabel"
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {
        name: tuple(map(str, names)) for name, names in named.items() if isinstance(names, list)
    }


def check_columns(file: SourceFile, columns: Mapping[str, str], there: Sequence[str]) -> None:
    """Raise UserError for a column (by the flag that names each) that a file does not have."""
    for flag, column in columns.items():
        if column not in there:
            raise UserError(
                f"{file.place} has no column '{column}'; give {flag} "
                f"({nearest(column, list(there))})."
            )


@contextmanager
def _opened(file: SourceFile) -> Iterator[Any]:
    """Open a file for pyarrow: gives its path, or its content as a file."""
    if file.has_path:
        yield file.path
        return
    if file.in_zip:  # pyarrow begins at the end, and goes back
        yield io.BytesIO(read_source(file))
        return
    with open_source(file) as source:
        yield source
