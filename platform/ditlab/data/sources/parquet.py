"""Parquet files, read some rows at a time."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ditlab.data.block_imports.listing import SourceFile
from ditlab.data.block_imports.opening import READ_BYTES as REMOTE_READ_BYTES
from ditlab.data.block_imports.opening import open_source
from ditlab.data.source_files import BadRecord
from ditlab.data.sources.parquet_pages import ParquetPage, read_page
from ditlab.errors import UserError, first_line, nearest
from ditlab.storage.plain_files import MIB, open_plain

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

READ_BYTES = 2**20
"""Bytes of a column that are read at a time."""
PAGE_READ_BYTES = 2**16
"""Bytes that are read for the header of a page behind a URI."""
MOST_UNPACKED = 4 * MIB
"""Bytes from which a page's ratio of compression is looked at: writers make pages of 1 MiB."""
MOST_RATIO = 100
"""Largest ratio of compression of a large page: text has 3 to 10, images have 1."""


def parquet_batches(
    file: Path | SourceFile, columns: Mapping[str, str], rows: int, groups: range | None = None
) -> "Iterator[pa.RecordBatch]":
    """Iterate over columns of a file (by the flag that names each), at most `rows` rows at a time.

    `groups`: the row groups that are read; None: all. Raises UserError for a column that is not there, and BadRecord,
    after the rows before, for a file that is damaged, or unpacks to far more than it takes.
    """
    import pyarrow.parquet as pq

    with _opened(file) as (source, buffer), pq.ParquetFile(source, pre_buffer=False, buffer_size=buffer) as table:
        names = table.schema_arrow.names
        for flag, column in columns.items():
            if column not in names:
                raise UserError(f"{_name(file)} has no column '{column}'; {nearest(column, names)} Give {flag}.")
        chosen = list(columns.values())
        for group in range(table.metadata.num_row_groups) if groups is None else groups:
            _check_pages(file, table.metadata.row_group(group), chosen)
            for batch in table.iter_batches(rows, row_groups=[group], columns=chosen, use_threads=False):
                yield batch.select(chosen)


def _check_pages(file: Path | SourceFile, group: "pq.RowGroupMetaData", columns: Collection[str]) -> None:
    """Raise BadRecord for a page that unpacks to far more than it takes, by the headers of a row group's pages.

    A page is unpacked whole, and of a dictionary every row gets a copy.
    """
    with _open(file, PAGE_READ_BYTES) as content:
        for chunk in map(group.column, range(group.num_columns)):
            name = chunk.path_in_schema.partition(".")[0]
            if name not in columns:
                continue
            for page in _pages(content, chunk):
                if page is None:
                    raise _unreadable(file, f"a page of '{name}' has a damaged header")
                if page.unpacked > MOST_UNPACKED and page.unpacked > MOST_RATIO * page.packed:
                    reason = f"'{name}' holds a page of {page.packed:,} bytes that unpacks to {page.unpacked:,}"
                    raise BadRecord.at(_name(file), reason, "write the file again with pages of 1 MiB")


def _pages(content: BinaryIO, chunk: "pq.ColumnChunkMetaData") -> Iterator[ParquetPage | None]:
    """Iterate over the pages of a column of a row group; one with a damaged header is None, and the last."""
    places = (chunk.data_page_offset, chunk.dictionary_page_offset)
    place = min((place for place in places if place), default=0)
    end = place + chunk.total_compressed_size
    while place < end:
        page = read_page(content, place)
        yield page
        place = page.end if page else end


def parquet_rows(file: Path | SourceFile) -> list[int]:
    """Return the number of rows of each of a file's row groups. Raises BadRecord for a file that cannot be read."""
    import pyarrow.parquet as pq

    with _opened(file) as (source, _):
        metadata = pq.read_metadata(source)
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def _open(file: Path | SourceFile, buffer: int) -> BinaryIO:
    return open_source(file, buffer=buffer) if isinstance(file, SourceFile) else open_plain(file, follow=True)


def _name(file: Path | SourceFile) -> str:
    """Return a file's name for people."""
    return file.place if isinstance(file, SourceFile) else str(file)


@contextmanager
def _opened(file: Path | SourceFile) -> "Iterator[tuple[Path | BinaryIO, int]]":
    """Check that a file is a plain one, and turn the errors of reading it in the body into BadRecord.

    Yields what pyarrow opens, and the bytes of a column that are read at a time.
    """
    import pyarrow as pa

    try:
        if isinstance(file, SourceFile) and file.is_remote:
            with open_source(file) as source:
                yield source, REMOTE_READ_BYTES
            return
        path = file.path if isinstance(file, SourceFile) else file
        open_plain(path, follow=True).close()
        yield path, READ_BYTES
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise _unreadable(file, first_line(error)) from error


def _unreadable(file: Path | SourceFile, reason: str) -> BadRecord:
    reason = f"no Parquet file that can be read ({reason})"
    return BadRecord(f"{_name(file)} is {reason}; copy it again.", _name(file), reason)
