"""Writer of Arrow stores: shards, by any number of processes, the index file, and the manifest
last.
"""

from __future__ import annotations

import hashlib
import math
import uuid
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pyarrow as pa

from ditlab.data.stores.block_index import (
    WHOLE_BYTES,
    BlockEntry,
    block_rows,
    column_hash,
    piece_rows,
    unpack_entries,
)
from ditlab.data.stores.blocks import arrow_array, arrow_schema, checked, digests, piece_digest
from ditlab.data.stores.manifest import (
    MANIFEST_NAME,
    Column,
    Columns,
    HashFile,
    Moments,
    Source,
    StoredColumn,
    StoreFacts,
    StoreManifest,
    StoreShard,
    TextFacts,
    format_manifest,
    row_bytes,
)
from ditlab.data.stores.receipt import ManifestRecord, SourceReceipt, plain_name
from ditlab.errors import UserError
from ditlab.storage.files import sync_file, sync_folder, write_durably, writing_into

PART_VALUES = 2**18
"""Values that are squared at once, in float64: 2 MiB."""
SHARD_BYTES = 256 * 2**20
"""Size from which a shard is closed."""
LEAST_PIECED_BYTES = 2**20
"""Size from which a shard's pieces have digests: a smaller one is hashed whole in half a
millisecond.
"""
_ARROW_MAGIC_BYTES = 8
"""Bytes before the schema of an Arrow IPC file."""


class WrittenShard(ManifestRecord):
    """Shard on disk, with all that a manifest needs to know of it. It travels as JSON."""

    shard: StoreShard
    block_rows: int
    """Rows of its blocks; the last one may have fewer."""
    entries: str
    """Its part of the index file, in base64."""
    moments: dict[str, Moments]
    """Moments of its columns, by name."""


class ShardSeries:
    """Shards of one writer, `PREFIX-NNNNN-HASH.arrow`, of which one is open at a time; all have
    names at the end alone.

    Beside each of more than LEAST_PIECED_BYTES lies `PREFIX-NNNNN-HASH.pieces`, the digests of its
    pieces.

    Raises OSError as the disk does, and UserError for values that a column cannot hold.
    """

    def __init__(
        self,
        folder: Path,
        prefix: str,
        columns: Columns,
        rows_per_block: int | None = None,
        rows_per_shard: int | None = None,
    ):
        """Begin shards of blocks of `rows_per_block` rows (None: as `block_index.block_rows` has
        it).

        A shard is closed once it has SHARD_BYTES, or `rows_per_shard` rows, a multiple of the
        block's.
        """
        self._folder = folder
        self._prefix = prefix
        self._columns = columns
        self._size = rows_per_block or block_rows(row_bytes(columns))
        self._shard_rows = rows_per_shard
        self._schema = arrow_schema(columns)
        self._buffers: dict[str, np.ndarray] = {}
        """Memory of a block for rows that fill none yet, once there are any."""
        self._num_held = 0
        self._files: dict[Path, str] = {}
        """Name that each file under a temporary one will have; none for the open shard."""
        self._piece_rows = piece_rows(row_bytes(columns))
        self._written: list[WrittenShard] = []
        self._sink: pa.OSFile | None = None

    def append(self, batch: Mapping[str, Any]) -> None:
        """Append rows."""
        arrays = _stored_arrays(self._columns, batch)
        start = 0
        rows = len(next(iter(arrays.values())))
        while start < rows:
            taken = min(rows - start, self._size - self._num_held)
            block = {name: values[start : start + taken] for name, values in arrays.items()}
            start += taken
            if taken < self._size:  # a whole block needs no copy
                for name, values in block.items():
                    if name not in self._buffers:
                        self._buffers[name] = np.empty(
                            (self._size, *values.shape[1:]), values.dtype
                        )
                    self._buffers[name][self._num_held : self._num_held + taken] = values
                self._num_held += taken
                if self._num_held < self._size:
                    break
                block = self._buffers
                self._num_held = 0
            self._add(block)
            if self._bytes >= SHARD_BYTES or (self._shard_rows and self._rows >= self._shard_rows):
                self._close_shard()

    def finish(self) -> list[WrittenShard]:
        """Close the last shard, and give all their names: they stay."""
        if self._num_held:
            self._add({name: values[: self._num_held] for name, values in self._buffers.items()})
        if self._sink is not None:
            self._close_shard()
        for file, name in self._files.items():
            file.replace(self._folder / name)
        self._files = {}
        sync_folder(self._folder)
        return self._written

    def close(self) -> None:
        """Remove what has no name yet. Closing twice is fine."""
        if self._sink is not None:
            self._sink.close()
        for file in self._files:
            file.unlink(missing_ok=True)
        self._sink = None
        self._files = {}

    def _add(self, block: dict[str, np.ndarray]) -> None:
        """Write a block, C-contiguous in its stored dtypes."""
        if self._sink is None:
            self._open = self._temporary()
            self._sink = pa.OSFile(str(self._open), "wb")
            self._stream = pa.ipc.new_file(self._sink, self._schema)
            # the writer writes the schema together with the first block
            self._rows = 0
            self._bytes = _ARROW_MAGIC_BYTES + self._schema.serialize().size
            self._entries = b""
            self._pieces = bytearray()
            self._moments = {name: Moments() for name in self._columns}
        for name, values in block.items():
            self._moments[name] = self._moments[name].merge(
                measure(name, self._columns[name], values)
            )
        arrays = [arrow_array(field.type, block[field.name]) for field in self._schema]
        self._stream.write_batch(pa.record_batch(arrays, schema=self._schema))
        end = self._sink.tell()
        self._entries += BlockEntry(self._bytes, end - self._bytes, digests(block)).pack()
        rows = len(next(iter(block.values())))
        for first in range(0, rows, self._piece_rows):
            piece = slice(first, first + self._piece_rows)
            self._pieces += piece_digest({name: values[piece] for name, values in block.items()})
        self._bytes = end
        self._rows += rows

    def _temporary(self) -> Path:
        file = self._folder / f".{uuid.uuid4().hex}.partial"
        self._files[file] = ""
        return file

    def _close_shard(self) -> None:
        assert self._sink is not None
        self._stream.close()
        self._sink.close()
        self._sink = None
        size = sync_file(self._open)
        with self._open.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        stem = f"{self._prefix}-{len(self._written):05d}"
        self._files[self._open] = f"{stem}-{digest[:12]}.arrow"
        pieces = self._write_pieces(stem) if size > LEAST_PIECED_BYTES else None
        blocks = hashlib.sha256(self._entries).hexdigest()
        shard = StoreShard(
            file=self._files[self._open],
            rows=self._rows,
            bytes=size,
            sha256=digest,
            blocks=blocks,
            pieces=pieces,
        )
        entries = b64encode(self._entries).decode()
        self._written.append(
            WrittenShard(shard=shard, block_rows=self._size, entries=entries, moments=self._moments)
        )

    def _write_pieces(self, stem: str) -> HashFile:
        """Write the digests of the open shard's pieces."""
        file = self._temporary()
        sha256 = hashlib.sha256(self._pieces).hexdigest()
        file.write_bytes(self._pieces)
        self._files[file] = f"{stem}-{sha256[:12]}.pieces"
        return HashFile(file=self._files[file], bytes=sync_file(file), sha256=sha256)


def _stored_arrays(columns: Columns, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the columns of a batch in their stored dtypes. Raises ValueError for other columns."""
    arrays = {name: checked(name, column, batch[name]) for name, column in columns.items()}
    if batch.keys() != arrays.keys() or len({len(values) for values in arrays.values()}) != 1:
        raise ValueError(f"a batch needs exactly the columns {sorted(arrays)}, all of one length")
    return arrays


def write_shards(
    folder: Path,
    prefix: str,
    columns: Columns,
    batches: Iterable[Mapping[str, Any]],
    rows_per_block: int | None = None,
    rows_per_shard: int | None = None,
) -> list[WrittenShard]:
    """Write rows as shards of a store, durably; returns their records, which `finish_store` joins.

    A batch has every column as (rows, *shape) in its own dtype, any number of rows. The shards are
    `PREFIX-NNNNN-HASH.arrow` in the folder, which must exist, of `rows_per_block` and
    `rows_per_shard` as `ShardSeries` has them; a block is held in memory. Equal rows give equal
    files; none is left where `batches` raises. Raises UserError for values that a column cannot
    hold, and for a folder that cannot be written.
    """
    with closing(ShardSeries(folder, prefix, columns, rows_per_block, rows_per_shard)) as series:
        for batch in batches:
            with writing_into(folder):
                series.append(batch)
        with writing_into(folder):
            return series.finish()


def measure(name: str, column: Column, values: np.ndarray) -> Moments:
    """Return the moments of rows, (rows, *shape). Raises UserError for values that the column
    cannot hold.
    """
    low = float(values.min())
    high = float(values.max())
    classes = column.num_classes
    bounds = column.value_range
    counts = None
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UserError(
            f"column '{name}' holds NaN or infinities; a store takes finite numbers only."
        )
    if classes is not None:
        if low < 0 or high >= classes:
            raise UserError(
                f"column '{name}' holds classes {low:.0f} to {high:.0f}, but "
                f"num_classes={classes} allows 0 to {classes - 1}; the source is damaged or "
                "num_classes is wrong."
            )
        counts = tuple(np.bincount(values.reshape(-1), minlength=classes).tolist())
    if bounds is not None and (low < bounds[0] or high > bounds[1]):
        raise UserError(
            f"column '{name}' holds values {low:g} to {high:g} outside its value_range {bounds}; "
            "the source is damaged or value_range is wrong."
        )
    flat = values.reshape(-1)
    mean = float(values.mean(dtype=np.float64))
    # part by part: numpy's variance would take eight times the memory of a block of bytes; in one
    # buffer: new arrays for each part took thirteen times as long
    buffer = np.empty(min(PART_VALUES, flat.size))
    sums = []
    for first in range(0, flat.size, PART_VALUES):
        part = flat[first : first + PART_VALUES]
        off = np.subtract(part, mean, out=buffer[: part.size], dtype=np.float64)
        sums.append(float(np.square(off, out=off).sum()))
    squares = math.fsum(sums)
    return Moments(
        count=values.size, min=low, max=high, mean=mean, squares=squares, class_counts=counts
    )


def write_batches(
    path: Path,
    columns: Columns,
    batches: Iterable[Mapping[str, Any]],
    *,
    rows_per_shard: int | None = None,
    rows_per_block: int | None = None,
    **facts: Unpack[StoreFacts],
) -> StoreManifest:
    """Write a store from batches as `write_shards` takes them; returns its manifest.

    A store of up to WHOLE_BYTES is one block, held in memory until then; a larger one has blocks as
    `block_index.block_rows` says, or of `rows_per_block`, whose multiple `rows_per_shard` is. Files
    carry their content's hash in their names, so a store that is replaced stays whole for its
    readers until the new manifest takes the old one's place in a single rename. Nothing is left
    where `batches` raises. Attachments (bytes by file name) keep their names: one that changes
    takes its place right before the manifest does.

    Raises UserError for values that a column cannot hold, for no rows at all, and for a folder that
    cannot be written; ValueError for a name, of the store or an attachment, that leads to another
    folder.
    """
    for each in (facts["name"], *(facts.get("attachments") or {})):
        plain_name(each)
    made_folder = not path.exists()
    unread = iter(batches)
    try:
        with writing_into(path):
            path.mkdir(parents=True, exist_ok=True)
        held = deque[dict[str, np.ndarray]]()
        rows = rows_per_block or rows_per_shard
        if not rows:
            held, rows = _first_batches(columns, unread)
        # each leaves the memory as it is written
        released = (held.popleft() for _ in range(len(held)))
        shards = write_shards(path, "shard", columns, chain(released, unread), rows, rows_per_shard)
        with writing_into(path):
            return finish_store(path, columns, shards, **facts)
    finally:
        if made_folder and path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _first_batches(
    columns: Columns, batches: Iterator[Mapping[str, Any]]
) -> tuple[deque[dict[str, np.ndarray]], int]:
    """Copy the first batches, of more than WHOLE_BYTES or all there are; returns them and the rows
    of a block.
    """
    held = deque[dict[str, np.ndarray]]()
    rows = 0
    num_bytes = 0
    for batch in batches:
        arrays = _stored_arrays(columns, batch)
        held.append(
            {name: values.view(columns[name].dtype).copy() for name, values in arrays.items()}
        )
        rows += len(next(iter(arrays.values())))
        num_bytes += sum(values.nbytes for values in arrays.values())
        if num_bytes > WHOLE_BYTES:
            return held, block_rows(row_bytes(columns))
    return held, max(1, rows)


def finish_store(
    path: Path,
    columns: Columns,
    shards: Sequence[WrittenShard],
    *,
    name: str,
    source: Source,
    description: str = "",
    text: TextFacts | None = None,
    attachments: Mapping[str, bytes] | None = None,
    receipt: SourceReceipt | None = None,
) -> StoreManifest:
    """Write the index file, the attachments (bytes by file name) and, last, the manifest of shards
    in a folder.

    A store that was there stays whole until the manifest takes the old one's place in a single
    rename; its shards are removed after that. Raises UserError where there are no rows; OSError as
    the disk does.
    """
    rows = sum(each.shard.rows for each in shards)
    if not rows:
        raise UserError(f"nothing to write to {path}: the source holds no rows; check the source.")
    entries = [b64decode(each.entries) for each in shards]
    index = b"".join(entries)
    digest = hashlib.sha256(index).hexdigest()
    attached = attachments or {}
    manifest = StoreManifest(
        name=name,
        description=description,
        rows=rows,
        columns={column: _stored_column(column, columns, shards, entries) for column in columns},
        shards=tuple(each.shard for each in shards),
        block_rows=shards[0].block_rows,
        index=HashFile(file=f"blocks-{digest[:12]}.bin", bytes=len(index), sha256=digest),
        source=source,
        text=text,
        attachments={
            file: hashlib.sha256(content).hexdigest() for file, content in attached.items()
        },
        receipt=receipt,
        fingerprint="",
    )
    manifest = manifest.model_copy(update={"fingerprint": manifest.computed_fingerprint()})
    files = {manifest.index.file: index, **attached, MANIFEST_NAME: format_manifest(manifest)}
    for file, content in files.items():
        write_durably(path / file, content)
    _remove_strays(path, {name for name, _, _ in manifest.stored_files})
    return manifest


def _remove_strays(path: Path, named: Collection[str]) -> None:
    """Remove files of an older store that the manifest does not name; open maps of them stay
    valid.
    """
    for pattern in ("*.arrow", "*.pieces", "blocks-*.bin"):
        for stray in path.glob(pattern):
            if stray.name not in named:
                stray.unlink(missing_ok=True)


def _stored_column(
    name: str, columns: Columns, shards: Sequence[WrittenShard], entries: Sequence[bytes]
) -> StoredColumn:
    """Return a column with the statistics and the hash of its rows. `entries`: those of each
    shard's blocks.
    """
    place = sorted(columns).index(name)

    def blocks() -> Iterator[tuple[int, bytes]]:
        for each, packed in zip(shards, entries, strict=True):
            for number, entry in enumerate(unpack_entries(packed, len(columns))):
                rows_left = each.shard.rows - number * each.block_rows
                yield min(each.block_rows, rows_left), entry.digests[place]

    moments = reduce(Moments.merge, (each.moments[name] for each in shards))
    return StoredColumn(
        **columns[name].model_dump(), statistics=moments.statistics(), sha256=column_hash(blocks())
    )
