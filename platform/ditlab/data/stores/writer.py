"""Writer of Arrow stores: bounded memory, durable shards, the manifest last."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ditlab.data.stores.blocks.cutter import as_array, checked
from ditlab.data.stores.finishing import finish_store
from ditlab.data.stores.layout import WHOLE_BYTES, block_rows
from ditlab.data.stores.manifest import Column, Source, StoreManifest, TextFacts
from ditlab.data.stores.plain_names import plain_name
from ditlab.data.stores.shards import ShardSeries, refused


class StoreWriter:
    """Writer of a store from batches, which holds at most WHOLE_BYTES of rows in memory.

        with StoreWriter(path, {"image": Column(...), "label": Column(...)}, name=..., source=...) as writer:
            writer.append({"image": images, "label": labels})

    A store of up to WHOLE_BYTES is one block; a larger one has blocks as `layout.block_rows` says. Shards go to
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

    def __enter__(self) -> "StoreWriter":
        self._made_folder = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refused(self.path, error) from error
        if self._block_rows:
            self._series = self._begin(self._block_rows)
        return self

    def append(self, batch: Mapping[str, Any]) -> None:
        """Append rows: every column, an array or a tensor, as (rows, *shape) in its own dtype."""
        try:
            if self._series is None:
                self._hold(batch)
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
        return ShardSeries(self.path, "shard", self._columns, rows_per_block)

    def _hold(self, batch: Mapping[str, Any]) -> None:
        """Keep rows until they are more than one block may have; from then on write blocks."""
        for name, column in self._columns.items():
            checked(name, column, batch[name])
        copied = {name: as_array(values).copy() for name, values in batch.items()}
        self._held.append(copied)
        self._held_bytes += sum(values.nbytes for values in copied.values())
        if self._held_bytes > WHOLE_BYTES:
            self._series = self._begin(block_rows(sum(column.row_bytes for column in self._columns.values())))
            for held in self._released():
                self._series.append(held)

    def _released(self) -> Iterator[dict[str, np.ndarray]]:
        while self._held:
            yield self._held.pop(0)

    def _finish(self) -> None:
        if self._series is None:
            self._series = self._begin(max(1, sum(len(next(iter(held.values()))) for held in self._held)))
            for held in self._released():
                self._series.append(held)
        self.manifest = finish_store(
            self.path,
            self._columns,
            self._series.finish(),
            name=self._name,
            description=self._description,
            source=self._source,
            text=self.text,
            attachments=self._attachments,
        )
