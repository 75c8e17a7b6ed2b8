"""Shards of a store: written block by block, by any number of processes, and joined under a manifest.

Statistics of a column arrive in batches, or in parts that are merged.
"""

from __future__ import annotations

import hashlib
import math
import uuid
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from ditlab.data.stores.block_index import BlockEntry, block_rows
from ditlab.data.stores.blocks import BlockCutter, arrow_schema, digests, record_batch
from ditlab.data.stores.manifest import Column, ColumnStatistics, ManifestRecord, StoreShard
from ditlab.errors import UserError
from ditlab.storage.files import flush_to_disk, sync_folder

SHARD_BYTES = 256 * 2**20
"""Size from which a shard is closed."""
_ARROW_MAGIC_BYTES = 8
"""Bytes before the schema of an Arrow IPC file."""
HISTOGRAM_BYTES = 2**16
"""Bytes from which their histogram is quicker than passes over the numbers: 2 ms of 4 MiB, and 14 ms."""


class WrittenShard(ManifestRecord):
    """Shard on disk, with all that a manifest needs to know of it. It travels as JSON."""

    shard: StoreShard
    block_rows: int
    """Rows of its blocks; the last one may have fewer."""
    entries: str
    """Its part of the index file, in base64."""
    moments: dict[str, Moments]
    """Moments of its columns, by name."""

    @property
    def index(self) -> bytes:
        """Its part of the index file."""
        return b64decode(self.entries)

    @property
    def rows_of_blocks(self) -> Iterator[int]:
        """Rows of its blocks, in their order."""
        for first in range(0, self.shard.rows, self.block_rows):
            yield min(self.block_rows, self.shard.rows - first)


class ShardWriter:
    """Writer of one shard, a block at a time, under a temporary name.

    Raises OSError as the disk does, and UserError for values that a column cannot hold.
    """

    def __init__(self, folder: Path, columns: Mapping[str, Column], rows_per_block: int):
        self.rows = 0
        """Rows so far."""
        self.bytes = 0
        """Bytes so far."""
        self._columns, self._block_rows = columns, rows_per_block
        self._schema = arrow_schema(columns)
        self._entries: list[BlockEntry] = []
        self._moments = {name: Moments() for name in columns}
        self.file = folder / f".{uuid.uuid4().hex}.partial"
        """Path, until the shard gets its name."""
        self._sink = _HashingFile(self.file.open("wb"))
        self._stream = pa.ipc.new_file(self._sink, self._schema)
        # the writer writes the schema together with the first block
        self.bytes = _ARROW_MAGIC_BYTES + self._schema.serialize().size

    def add(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write a block: every column as (rows, *shape) in its stored dtype, C-contiguous."""
        rows = len(next(iter(arrays.values())))
        assert 0 < rows <= self._block_rows and not self.rows % self._block_rows, "only the last block may have fewer"
        for name, values in arrays.items():
            self._moments[name] = self._moments[name].merge(measure(name, self._columns[name], values))
        self._stream.write_batch(record_batch(arrays, self._columns, self._schema))
        end = self._sink.written
        self._entries.append(BlockEntry(self.bytes, end - self.bytes, digests(arrays)))
        self.bytes, self.rows = end, self.rows + rows

    def finish(self, prefix: str) -> WrittenShard:
        """Close the shard and flush it to the disk; returns its record, whose name is the prefix and its hash."""
        self._stream.close()
        flush_to_disk(self._sink.file)
        self._sink.close()
        index = b"".join(entry.pack() for entry in self._entries)
        digest = self._sink.digest.hexdigest()
        shard = StoreShard(
            file=f"{prefix}-{digest[:12]}.arrow",
            rows=self.rows,
            bytes=self._sink.written,
            sha256=digest,
            blocks=hashlib.sha256(index).hexdigest(),
        )
        return WrittenShard(
            shard=shard, block_rows=self._block_rows, entries=b64encode(index).decode(), moments=self._moments
        )

    def abandon(self) -> None:
        """Close and remove an unfinished shard."""
        self._sink.close()
        self.file.unlink(missing_ok=True)


def write_shards(
    folder: Path,
    prefix: str,
    columns: Mapping[str, Column],
    batches: Iterable[Mapping[str, np.ndarray]],
    most_bytes: int = SHARD_BYTES,
    rows_per_block: int | None = None,
) -> list[WrittenShard]:
    """Write rows as shards of a store, durably; returns their records, which `writer.finish_store` joins.

    A batch has every column as (rows, *shape) in its own dtype, any number of rows. The shards are
    `PREFIX-NNNNN-HASH.arrow` in the folder, which must exist; each has blocks of `rows_per_block` rows (None: of those
    that `block_index.block_rows` gives). One block is held in memory. Equal rows give equal files. Where `batches`
    raises, no file is left.

    Raises UserError for values that a column cannot hold, and for a folder that cannot be written.
    """
    rows = rows_per_block or block_rows(sum(column.row_bytes for column in columns.values()))
    writers = ShardSeries(folder, prefix, columns, rows)
    try:
        for batch in batches:
            writers.append(batch, most_bytes)
        return writers.finish()
    except OSError as error:
        raise refused(folder, error) from error
    finally:
        writers.close()


class ShardSeries:
    """Shards of one writer, `PREFIX-NNNNN-HASH.arrow`, of which one is open at a time."""

    def __init__(self, folder: Path, prefix: str, columns: Mapping[str, Column], rows_per_block: int):
        self._folder, self._prefix, self._columns, self._size = folder, prefix, columns, rows_per_block
        self._cutter = BlockCutter(columns, rows_per_block)
        self._open: ShardWriter | None = None
        self._files: list[Path] = []
        self._written: list[WrittenShard] = []

    def append(self, batch: Mapping[str, Any], most_bytes: int = SHARD_BYTES, most_rows: int | None = None) -> None:
        """Append rows; a shard is closed once it has `most_bytes`, or `most_rows`, a multiple of the block's."""
        for block in self._cutter.add(batch):
            self._add(block)
            assert self._open is not None
            if self._open.bytes >= most_bytes or (most_rows and self._open.rows >= most_rows):
                self._close_shard()

    def finish(self) -> list[WrittenShard]:
        """Close the last shard, and give all their names: they stay."""
        for block in self._cutter.rest():
            self._add(block)
        if self._open is not None:
            self._close_shard()
        for file, written in zip(self._files, self._written, strict=True):
            file.replace(self._folder / written.shard.file)
        self._files = []
        sync_folder(self._folder)
        return self._written

    def close(self) -> None:
        """Remove what has no name yet. Closing twice is fine."""
        if self._open is not None:
            self._open.abandon()
        for file in self._files:
            file.unlink(missing_ok=True)
        self._open, self._files = None, []

    def _add(self, block: dict[str, np.ndarray]) -> None:
        self._open = self._open or ShardWriter(self._folder, self._columns, self._size)
        self._open.add(block)

    def _close_shard(self) -> None:
        assert self._open is not None
        written = self._open.finish(f"{self._prefix}-{len(self._written):05d}")
        self._files.append(self._open.file)
        self._written.append(written)
        self._open = None


def refused(folder: Path, error: OSError) -> UserError:
    """Return the error for a folder that cannot be written."""
    return UserError(f"{folder} cannot be written ({error.strerror}); free space there or choose another folder.")


class _HashingFile:
    """File that is hashed while it is written: pyarrow takes it for a Python file."""

    def __init__(self, file: IO[bytes]):
        self.file, self.digest, self.written = file, hashlib.sha256(), 0
        self.closed = False

    def write(self, content: Any) -> int:
        view = memoryview(content)
        self.digest.update(view)
        self.file.write(view)
        self.written += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.written

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.closed = True
        self.file.close()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class Moments(ManifestRecord):
    """Count, extrema, mean, squared deviations and class counts of some rows of a column.

    Means and squared deviations are merged as in Chan, Golub and LeVeque (1979), which loses no digits to large means.
    """

    count: int = 0
    """Number of elements."""
    min: float = 0.0
    max: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared deviations from the mean."""
    class_counts: tuple[int, ...] | None = None
    """Number of elements by class, for columns with `num_classes`."""

    def merge(self, other: Moments) -> Moments:
        """Return the moments of these rows and others."""
        if not self.count:
            return other
        total = self.count + other.count
        delta = other.mean - self.mean
        counts = self.class_counts
        if counts is not None and other.class_counts is not None:
            counts = tuple(np.add(counts, other.class_counts).tolist())
        return Moments(
            count=total,
            min=min(self.min, other.min),
            max=max(self.max, other.max),
            mean=self.mean + delta * other.count / total,
            squares=self.squares + other.squares + delta * delta * self.count * other.count / total,
            class_counts=counts,
        )

    def statistics(self) -> ColumnStatistics:
        """Return the statistics of a store's column."""
        return ColumnStatistics(
            count=self.count,
            min=self.min,
            max=self.max,
            mean=self.mean,
            std=math.sqrt(self.squares / self.count),
            class_counts=self.class_counts,
        )


def measure(name: str, column: Column, values: np.ndarray) -> Moments:
    """Return the moments of rows, (rows, *shape), C-contiguous, one element at least.

    Raises UserError for values that the column cannot hold.
    """
    if values.dtype == np.uint8 and values.nbytes >= HISTOGRAM_BYTES:
        low, high, mean, squares = _measure_bytes(values)
        _refuse_bad_values(name, column, low, high)
    else:
        low, high = float(values.min()), float(values.max())
        _refuse_bad_values(name, column, low, high)
        mean, squares = float(values.mean(dtype=np.float64)), float(values.var(dtype=np.float64)) * values.size
    counts = None
    if column.num_classes is not None:
        counts = tuple(np.bincount(values.reshape(-1), minlength=column.num_classes).tolist())
    return Moments(count=values.size, min=low, max=high, mean=mean, squares=squares, class_counts=counts)


def _measure_bytes(values: np.ndarray) -> tuple[float, float, float, float]:
    """Return (min, max, mean, squares) by the bytes' histogram, which Pillow counts five times faster than NumPy."""
    from PIL import Image

    flat = values.reshape(-1)
    width = 2**12
    whole = flat.size - flat.size % width
    counts = np.array(Image.frombuffer("L", (width, whole // width), flat[:whole], "raw", "L", 0, 1).histogram())
    counts += np.bincount(flat[whole:], minlength=256)
    numbers = np.arange(256, dtype=np.float64)
    mean = float(counts @ numbers) / flat.size
    held = np.flatnonzero(counts)
    return float(held[0]), float(held[-1]), mean, float(counts @ (numbers - mean) ** 2)


def _refuse_bad_values(name: str, column: Column, low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UserError(f"column '{name}' holds NaN or infinities; a store takes finite numbers only.")
    classes, bounds = column.num_classes, column.value_range
    if classes is not None and (low < 0 or high >= classes):
        raise UserError(
            f"column '{name}' holds classes {low:.0f} to {high:.0f}, but num_classes={classes} allows "
            f"0 to {classes - 1}; the source is damaged or num_classes is wrong."
        )
    if bounds is not None and (low < bounds[0] or high > bounds[1]):
        raise UserError(
            f"column '{name}' holds values {low:g} to {high:g} outside its value_range {bounds}; "
            "the source is damaged or value_range is wrong."
        )
