"""Parquet files, read some rows at a time.

The headers of their pages are read in Thrift's compact protocol (apache/parquet-format, parquet.thrift, `PageHeader`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from ditlab.data.block_imports.source_files import READ_BYTES as REMOTE_READ_BYTES
from ditlab.data.block_imports.source_files import BadRecord, SourceFile, open_source
from ditlab.errors import UserError, first_line, nearest
from ditlab.storage.plain_files import MIB, open_regular_file

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
_HEADER_BYTES = (4096, 16 << 20)
"""Bytes that are read for a header at first, and the most that Parquet's readers take one to have."""
_DEEPEST = 16
"""Levels of structures within each other; a page's header has three."""
_BOOLEANS, _NUMBERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = (1, 2), (4, 5, 6), 7, 8, (9, 10), 11, 12
_BYTE, _I32 = 3, 5
_UNPACKED, _PACKED = 2, 3
"""Fields of `PageHeader`: the sizes in bytes of the page behind it."""


def parquet_batches(
    file: Path | SourceFile, columns: Mapping[str, str], rows: int, groups: range | None = None
) -> Iterator[pa.RecordBatch]:
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


def _check_pages(file: Path | SourceFile, group: pq.RowGroupMetaData, columns: Collection[str]) -> None:
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


def _pages(content: BinaryIO, chunk: pq.ColumnChunkMetaData) -> Iterator[ParquetPage | None]:
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
    return open_source(file, buffer=buffer) if isinstance(file, SourceFile) else open_regular_file(file, follow=True)


def _name(file: Path | SourceFile) -> str:
    """Return a file's name for people."""
    return file.place if isinstance(file, SourceFile) else str(file)


@contextmanager
def _opened(file: Path | SourceFile) -> Iterator[tuple[Path | BinaryIO, int]]:
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
        open_regular_file(path, follow=True).close()
        yield path, READ_BYTES
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise _unreadable(file, first_line(error)) from error


def _unreadable(file: Path | SourceFile, reason: str) -> BadRecord:
    reason = f"no Parquet file that can be read ({reason})"
    return BadRecord(f"{_name(file)} is {reason}; copy it again.", _name(file), reason)


class ParquetPage(NamedTuple):
    """Page of a column."""

    unpacked: int
    """Bytes that it says it unpacks to: readers allocate as many."""
    packed: int
    """Bytes that it takes in the file."""
    end: int
    """Offset of its end in the file."""


def read_page(content: BinaryIO, place: int) -> ParquetPage | None:
    """Read the header of the page at an offset of a file; None for one that is damaged."""
    for most in _HEADER_BYTES:
        content.seek(place)
        header = _Header(content.read(most))
        try:
            sizes = header.read_sizes()
        except IndexError:  # it is longer, or the file ends within it
            continue
        except ValueError:
            return None
        unpacked, packed = sizes.get(_UNPACKED, -1), sizes.get(_PACKED, -1)
        return ParquetPage(unpacked, packed, place + header.place + packed) if min(unpacked, packed) >= 0 else None
    return None


class _Header:
    """Reader of a structure; raises IndexError at the end of the text, and ValueError for what no structure holds."""

    def __init__(self, text: bytes) -> None:
        self.place = 0
        self._text = text

    def read_sizes(self) -> dict[int, int]:
        """Read a structure to its end; returns its 32-bit fields by number."""
        sizes: dict[int, int] = {}
        number = 0
        while kind := self._byte():
            number = number + (kind >> 4) if kind >> 4 else self._integer()
            if kind & 15 == _I32:
                sizes[number] = self._integer()
            else:
                self._skip(kind & 15, 1)
        return sizes

    def _byte(self) -> int:
        value = self._text[self.place]
        self.place += 1
        return value

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number without end")

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")
        if kind in _NUMBERS:
            self._varint()
        elif kind == _BYTE:
            self._byte()
        elif kind == _DOUBLE:
            self._pass(8)
        elif kind == _BINARY:
            self._pass(self._varint())
        elif kind in _LISTS:
            head = self._byte()
            for _ in range(head >> 4 if head >> 4 < 15 else self._varint()):
                self._skip_element(head & 15, depth + 1)
        elif kind == _MAP:
            num = self._varint()
            kinds = self._byte() if num else 0
            for _ in range(num):
                self._skip_element(kinds >> 4, depth + 1)
                self._skip_element(kinds & 15, depth + 1)
        elif kind == _STRUCT:
            while field := self._byte():
                if not field >> 4:
                    self._varint()
                self._skip(field & 15, depth + 1)
        elif kind not in _BOOLEANS:
            raise ValueError(f"a field of unknown type {kind}")

    def _skip_element(self, kind: int, depth: int) -> None:
        """Pass over an element of a list or map, where a boolean takes a byte; as a field it is part of its type."""
        self._byte() if kind in _BOOLEANS else self._skip(kind, depth)

    def _pass(self, num: int) -> None:
        self.place += num
        if self.place > len(self._text):
            raise IndexError(num)
