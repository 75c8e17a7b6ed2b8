"""Writer of Arrow stores: bounded memory, durable shards, the manifest last."""

import hashlib
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
from torch import Tensor

from ditlab.data.stores.manifest import (
    MANIFEST_NAME,
    Column,
    Source,
    StoreManifest,
    StoreShard,
    TextFacts,
    content_fingerprint,
)
from ditlab.data.stores.manifest_parsing import format_manifest
from ditlab.data.stores.plain_names import plain_name
from ditlab.data.stores.statistics import RunningStatistics
from ditlab.errors import UserError
from ditlab.storage.files import flush_to_disk, sync_folder, write_durably

SHARD_BYTES = 256 * 2**20
"""Size of a shard where no row limit is given: the memory that a writer takes."""


class StoreWriter:
    """Writer of a store from batches, which holds one shard in memory.

        with StoreWriter(path, {"image": Column(...), "label": Column(...)}, name=..., source=...) as writer:
            writer.append({"image": images, "label": labels})

    Shards go to temporary names, are fsynced, and take names that carry their content's hash, so a store that is
    replaced stays whole for its readers until the new manifest takes the old one's place in a single rename, and two
    processes that write the same rows write the same files. When the body raises, nothing of it is left. Attachments
    (bytes by file name) keep their names: one that changes takes its place right before the manifest does.

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
    ):
        self.path = path
        self.text: TextFacts | None = None
        """Facts about the text of a token store; to be set before the body ends."""
        self.manifest: StoreManifest | None = None
        """Manifest of the written store, once the body has ended without an error."""
        self._columns = dict(columns)
        self._name, self._source, self._description = plain_name(name), source, description
        self._attachments = {plain_name(file): content for file, content in (attachments or {}).items()}
        self._limit = rows_per_shard or max(1, SHARD_BYTES // sum(c.row_bytes for c in columns.values()))
        self._schema = pa.schema([_arrow_field(n, c) for n, c in columns.items()])
        self._statistics = {n: RunningStatistics(n, c) for n, c in columns.items()}
        self._buffers = {n: np.empty((self._limit, *c.shape), c.stored_dtype) for n, c in columns.items()}
        self._filled = 0
        self._rows = 0
        self._shards: list[tuple[Path, StoreShard]] = []
        self._temporary: list[Path] = []

    def __enter__(self) -> "StoreWriter":
        self._made_folder = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._refused(error) from error
        return self

    def append(self, batch: Mapping[str, np.ndarray | Tensor]) -> None:
        """Append rows: every column as (rows, *shape) in its own dtype."""
        arrays = {name: self._checked(name, batch[name]) for name in self._columns}
        if set(batch) != set(arrays) or len({len(a) for a in arrays.values()}) != 1:
            raise ValueError(f"a batch needs exactly the columns {sorted(arrays)}, all of one length")
        for name, array in arrays.items():
            if len(array):
                self._statistics[name].add(array)
        start, rows = 0, len(next(iter(arrays.values())))
        while start < rows:
            taken = min(rows - start, self._limit - self._filled)
            for name, array in arrays.items():
                self._buffers[name][self._filled : self._filled + taken] = array[start : start + taken]
            start += taken
            self._filled += taken
            if self._filled == self._limit:
                self._cut_shard()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        except OSError as refusal:
            raise self._refused(refusal) from refusal
        finally:
            for file in self._temporary:
                file.unlink(missing_ok=True)
            if self._made_folder and self.manifest is None and not any(self.path.iterdir()):
                self.path.rmdir()

    def _checked(self, name: str, values: np.ndarray | Tensor) -> np.ndarray:
        column = self._columns[name]
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        if array.shape[1:] != column.shape or array.dtype.name != column.dtype:
            raise ValueError(
                f"column '{name}' takes (rows, *{column.shape}) {column.dtype}, got {array.shape} {array.dtype.name}"
            )
        return np.ascontiguousarray(array).view(column.stored_dtype)

    def _cut_shard(self) -> None:
        """Write the buffered rows as one record batch, so that every column of a shard is one contiguous buffer."""
        arrays = [_arrow_array(c, self._buffers[n][: self._filled]) for n, c in self._columns.items()]
        file = self.path / f".{uuid.uuid4().hex}.partial"
        self._temporary.append(file)
        try:
            with file.open("wb") as sink:
                with pa.ipc.new_file(sink, self._schema) as stream:
                    stream.write_batch(pa.record_batch(arrays, schema=self._schema))
                flush_to_disk(sink)
            with file.open("rb") as written:
                digest = hashlib.file_digest(written, "sha256").hexdigest()
        except OSError as error:
            raise self._refused(error) from error
        shard = StoreShard(
            file=f"shard-{len(self._shards):05d}-{digest[:12]}.arrow",
            rows=self._filled,
            bytes=file.stat().st_size,
            sha256=digest,
        )
        self._shards.append((file, shard))
        self._rows += self._filled
        self._filled = 0

    def _finish(self) -> None:
        if self._filled:
            self._cut_shard()
        if not self._rows:
            raise UserError(f"nothing to write to {self.path}: the source holds no rows; check the source.")
        columns = {name: self._statistics[name].stored_column() for name in self._columns}
        attachments = {name: hashlib.sha256(content).hexdigest() for name, content in self._attachments.items()}
        manifest = StoreManifest(
            name=self._name,
            description=self._description,
            rows=self._rows,
            columns=columns,
            shards=tuple(shard for _, shard in self._shards),
            source=self._source,
            text=self.text,
            attachments=attachments,
            fingerprint=content_fingerprint(self._rows, columns, attachments),
        )
        for file, shard in self._shards:
            file.replace(self.path / shard.file)
        sync_folder(self.path)
        for name, content in {**self._attachments, MANIFEST_NAME: format_manifest(manifest)}.items():
            write_durably(self.path / name, content)
        self.manifest = manifest
        named = {shard.file for shard in manifest.shards}
        for stray in self.path.glob("shard-*.arrow"):  # of the store that this one replaces; open maps stay valid
            if stray.name not in named:
                stray.unlink(missing_ok=True)

    def _refused(self, error: OSError) -> UserError:
        return UserError(
            f"{self.path} cannot be written ({error.strerror}); free space there or choose another folder."
        )


def _arrow_field(name: str, column: Column) -> pa.Field:
    element = pa.from_numpy_dtype(column.stored_dtype)
    arrow_type = pa.fixed_shape_tensor(element, column.shape) if column.shape else element
    meaning = column.model_dump_json(exclude={"shape"})  # part of Arrow's type
    return pa.field(name, arrow_type, nullable=False, metadata={"ditlab.column": meaning})


def _arrow_array(column: Column, values: np.ndarray) -> pa.Array:
    return pa.FixedShapeTensorArray.from_numpy_ndarray(values) if column.shape else pa.array(values)
