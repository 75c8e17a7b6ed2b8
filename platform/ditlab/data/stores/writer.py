"""Writer of Arrow stores: bounded memory, durable shards, the index file and the manifest last."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ditlab.data.stores.block_index import DIGEST_BYTES, WHOLE_BYTES, block_rows, column_hash, entry_bytes
from ditlab.data.stores.blocks import as_array, checked
from ditlab.data.stores.manifest import (
    MANIFEST_NAME,
    Column,
    IndexFile,
    Source,
    StoredColumn,
    StoreManifest,
    TextFacts,
    content_fingerprint,
    format_manifest,
    plain_name,
)
from ditlab.data.stores.shards import Moments, ShardSeries, WrittenShard, refused
from ditlab.errors import UserError
from ditlab.storage.files import replacing, sync_folder, write_durably

INDEX_PREFIX = "blocks-"


class StoreWriter:
    """Writer of a store from batches, which holds at most WHOLE_BYTES of rows in memory.

        with StoreWriter(path, {"image": Column(...), "label": Column(...)}, name=..., source=...) as writer:
            writer.append({"image": images, "label": labels})

    A store of up to WHOLE_BYTES is one block; a larger one has blocks as `block_index.block_rows` says. Shards go to
    temporary names, are fsynced, and take names that carry their content's hash, so a store that is replaced stays
    whole for its readers until the new manifest takes the old one's place in a single rename, and two processes that
    write the same rows write the same files. When the body raises, nothing of it is left. Attachments (bytes by file
    name) keep their names: one that changes takes its place right before the manifest does.

    Raises UserError for values that a column cannot hold, for no rows at all, and for a folder that cannot be written;
    ValueError for a name, of the store or an attachment, that leads to another folder.
    """

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, Column],
        *,
        name: str,
        source: Source,
        description: str = "",
        attachments: Mapping[str, bytes] | None = None,
        rows_per_shard: int | None = None,
        rows_per_block: int | None = None,
    ):
        """Prepare a writer. `rows_per_shard`: a multiple of `rows_per_block`, whose default it is."""
        self.path = path
        self.text: TextFacts | None = None
        """Facts about the text of a token store; to be set before the body ends."""
        self.manifest: StoreManifest | None = None
        """Manifest of the written store, once the body has ended without an error."""
        self._columns = dict(columns)
        self._name, self._source, self._description = plain_name(name), source, description
        self._attachments = {plain_name(file): content for file, content in (attachments or {}).items()}
        self._shard_rows = rows_per_shard
        self._block_rows = rows_per_block or rows_per_shard
        self._held: list[dict[str, np.ndarray]] = []
        self._held_bytes = 0
        self._series: ShardSeries | None = None

    def __enter__(self) -> StoreWriter:
        self._made_folder = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refused(self.path, error) from error
        if self._block_rows:
            self._begin(self._block_rows)
        return self

    def append(self, batch: Mapping[str, Any]) -> None:
        """Append rows: every column, an array or a tensor, as (rows, *shape) in its own dtype."""
        try:
            if self._series is None:
                # Keep rows until they are more than one block may have; from then on write blocks.
                for name, column in self._columns.items():
                    checked(name, column, batch[name])
                copied = {name: as_array(values).copy() for name, values in batch.items()}
                self._held.append(copied)
                self._held_bytes += sum(values.nbytes for values in copied.values())
                if self._held_bytes > WHOLE_BYTES:
                    self._begin(block_rows(sum(column.row_bytes for column in self._columns.values())))
            else:
                self._series.append(batch, most_rows=self._shard_rows)
        except OSError as error:
            raise refused(self.path, error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        except OSError as refusal:
            raise refused(self.path, refusal) from refusal
        finally:
            if self._series is not None:
                self._series.close()
            if self._made_folder and self.manifest is None and not any(self.path.iterdir()):
                self.path.rmdir()

    def _begin(self, rows_per_block: int) -> ShardSeries:
        """Begin to write blocks, with the rows that were held until now."""
        series = self._series = ShardSeries(self.path, "shard", self._columns, rows_per_block)
        while self._held:
            series.append(self._held.pop(0))
        return series

    def _finish(self) -> None:
        series = self._series or self._begin(max(1, sum(len(next(iter(held.values()))) for held in self._held)))
        self.manifest = finish_store(
            self.path,
            self._columns,
            series.finish(),
            name=self._name,
            description=self._description,
            source=self._source,
            text=self.text,
            attachments=self._attachments,
        )


def finish_store(
    path: Path,
    columns: Mapping[str, Column],
    shards: Sequence[WrittenShard],
    *,
    name: str,
    description: str,
    source: Source,
    text: TextFacts | None = None,
    attachments: Mapping[str, bytes] | None = None,
) -> StoreManifest:
    """Write the index file, the attachments (bytes by file name) and, last, the manifest of shards in a folder.

    A store that was there stays whole until the manifest takes the old one's place in a single rename; its shards are
    removed after that. Raises UserError where there are no rows; OSError as the disk does.
    """
    rows = sum(each.shard.rows for each in shards)
    if not rows:
        raise UserError(f"nothing to write to {path}: the source holds no rows; check the source.")
    stored = {column: _stored(column, columns, shards) for column in columns}
    attached = {plain_name(file): content for file, content in (attachments or {}).items()}
    hashes = {file: hashlib.sha256(content).hexdigest() for file, content in attached.items()}
    manifest = StoreManifest(
        name=plain_name(name),
        description=description,
        rows=rows,
        columns=stored,
        shards=tuple(each.shard for each in shards),
        block_rows=shards[0].block_rows,
        index=_write_index(path, shards),
        source=source,
        text=text,
        attachments=hashes,
        fingerprint=content_fingerprint(rows, stored, hashes),
    )
    sync_folder(path)
    for file, content in {**attached, MANIFEST_NAME: format_manifest(manifest)}.items():
        write_durably(path / file, content)
    remove_strays(path, manifest)
    return manifest


def remove_strays(path: Path, manifest: StoreManifest) -> None:
    """Remove shards and index files that the manifest does not name; open maps of them stay valid."""
    named = {shard.file for shard in manifest.shards} | {manifest.index.file}
    for stray in (*path.glob("*.arrow"), *path.glob(f"{INDEX_PREFIX}*.bin")):
        if stray.name not in named:
            stray.unlink(missing_ok=True)


def _write_index(path: Path, shards: Iterable[WrittenShard]) -> IndexFile:
    digest = hashlib.sha256()
    for each in shards:
        digest.update(each.index)
    name = f"{INDEX_PREFIX}{digest.hexdigest()[:12]}.bin"
    with replacing(path / name) as file:
        for each in shards:
            file.write(each.index)
        size = file.tell()
    return IndexFile(file=name, bytes=size, sha256=digest.hexdigest())


def _stored(name: str, columns: Mapping[str, Column], shards: Sequence[WrittenShard]) -> StoredColumn:
    place = sorted(columns).index(name)
    moments = Moments()
    for each in shards:
        moments = moments.merge(each.moments[name])
    blocks = (block for each in shards for block in _digests(each, place, entry_bytes(len(columns))))
    return StoredColumn(**columns[name].model_dump(), statistics=moments.statistics(), sha256=column_hash(blocks))


def _digests(shard: WrittenShard, place: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Iterate over the rows and the digest of one column in each block of a shard."""
    index, start = shard.index, 16 + place * DIGEST_BYTES
    for number, rows in enumerate(shard.rows_of_blocks):
        yield rows, index[number * size + start : number * size + start + DIGEST_BYTES]
