"""Parquet files, read some rows at a time."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ditlab.errors import UserError, first_line, nearest

if TYPE_CHECKING:
    import pyarrow as pa

READ_BYTES = 2**20
"""Bytes of a column that are read at a time."""


def parquet_batches(file: Path, columns: Mapping[str, str], rows: int) -> "Iterator[pa.RecordBatch]":
    """Iterate over columns of a file (by the flag that names each), at most `rows` rows at a time.

    Raises UserError for a column that is not there and a file that cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file, pre_buffer=False, buffer_size=READ_BYTES) as table:
            names = table.schema_arrow.names
            for flag, column in columns.items():
                if column not in names:
                    raise UserError(f"{file} has no column '{column}'; {nearest(column, names)} Give {flag}.")
            chosen = list(columns.values())
            for batch in table.iter_batches(rows, columns=chosen, use_threads=False):
                yield batch.select(chosen)
    except pa.ArrowException as error:
        raise UserError(f"{file} is no Parquet file that can be read ({first_line(error)}); copy it again.") from error
