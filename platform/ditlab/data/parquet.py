"""Parquet files, read some rows at a time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ditlab.errors import UserError, first_line, nearest
from ditlab.storage.plain_files import open_plain

if TYPE_CHECKING:
    import pyarrow as pa

READ_BYTES = 2**20
"""Bytes of a column that are read at a time."""


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
        for batch in table.iter_batches(rows, columns=chosen, use_threads=False):
            yield batch.select(chosen)


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
