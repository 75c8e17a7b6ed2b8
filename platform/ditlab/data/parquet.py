"""Parquet files, read some rows at a time."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from ditlab.errors import UserError, first_line, nearest
from ditlab.storage.plain_files import MIB, open_plain

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

READ_BYTES = 2**20
"""Bytes of a column that are read at a time."""
HEADER_BYTES = 64
MOST_UNPACKED = 16 * MIB
"""Bytes from which a dictionary's ratio of compression is looked at."""
MOST_RATIO = 100
"""Largest ratio of compression of a large dictionary: text has 3 to 10, images have 1."""


def parquet_batches(file: Path, columns: Mapping[str, str], rows: int) -> "Iterator[pa.RecordBatch]":
    """Iterate over columns of a file (by the flag that names each), at most `rows` rows at a time.

    Raises UserError for a column that is not there and a file that cannot be read.
    """
    import pyarrow.parquet as pq

    with _naming(file), pq.ParquetFile(file, pre_buffer=False, buffer_size=READ_BYTES) as table:
        names = table.schema_arrow.names
        for flag, column in columns.items():
            if column not in names:
                raise UserError(f"{file} has no column '{column}'; {nearest(column, names)} Give {flag}.")
        chosen = list(columns.values())
        _check_dictionaries(file, table.metadata, chosen)
        for batch in table.iter_batches(rows, columns=chosen, use_threads=False):
            yield batch.select(chosen)


def _check_dictionaries(file: Path, metadata: "pq.FileMetaData", columns: Collection[str]) -> None:
    """Raise UserError for a dictionary that unpacks to far more than it takes: rows would get copies of it."""
    with open_plain(file, follow=True) as content:
        for group, number in product(range(metadata.num_row_groups), range(metadata.num_columns)):
            chunk = metadata.row_group(group).column(number)
            name = chunk.path_in_schema.partition(".")[0]
            if name not in columns or not chunk.has_dictionary_page:
                continue
            content.seek(max(0, chunk.dictionary_page_offset))
            unpacked, packed = _page_sizes(content.read(HEADER_BYTES))
            if unpacked > MOST_UNPACKED and unpacked > MOST_RATIO * packed:
                raise UserError(
                    f"{file}: '{name}' holds a dictionary of {packed:,} bytes that unpacks to {unpacked:,} and is "
                    "copied into every row; write the file again without a dictionary for that column."
                )


def _page_sizes(header: bytes) -> tuple[int, int]:
    """Return a page's sizes unpacked and packed, from its header: Thrift's compact protocol, fields 1 to 3 all i32."""
    numbers: list[int] = []
    place = 0
    while len(numbers) < 3 and place < len(header) and header[place] == 0x15:  # the next field, an i32
        value = shift = 0
        more = True
        while more and place + 1 < len(header):
            place += 1
            value |= (header[place] & 0x7F) << shift
            shift += 7
            more = header[place] >= 0x80
        place += 1
        numbers.append(value >> 1 ^ -(value & 1))
    return (numbers[1], numbers[2]) if len(numbers) == 3 else (0, 0)  # pyarrow names a damaged page


def parquet_rows(file: Path) -> int:
    """Return the number of a file's rows. Raises UserError for a file that cannot be read."""
    import pyarrow.parquet as pq

    with _naming(file):
        return int(pq.read_metadata(file).num_rows)


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Check that a file is a plain one, and turn the errors of reading it in the body into UserError."""
    import pyarrow as pa

    try:
        open_plain(file, follow=True).close()
        yield
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise UserError(f"{file} is no Parquet file that can be read ({first_line(error)}); copy it again.") from error
