"""Images with captions of a block of a source, read as a stream: image files, tars, tables.

Tables are Parquet, folders that the Hugging Face library `datasets` has saved, and MosaicML's MDS shards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.block_imports.source_files import BadRecord, SourceFile, read_source
from ditlab.data.images.annotations import Annotations
from ditlab.data.images.decoding import CAPTION_BYTES, CaptionedImage, most_image_bytes
from ditlab.data.images.tar_files import tar_images
from ditlab.data.sources.mds import MdsShard, mds_samples
from ditlab.data.sources.records import record_batches
from ditlab.errors import UserError, first_line

if TYPE_CHECKING:
    import pyarrow as pa


ROWS = 16
"""Rows of a Parquet file that are read at a time: an image each."""
AHEAD = 16
"""Files behind a URI that are read at once: each takes a request's latency."""


@dataclass(frozen=True)
class TableColumns:
    """Columns of a table that hold images and captions."""

    image: str
    caption: str | None
    """None where captions are not read."""

    @property
    def by_flag(self) -> dict[str, str]:
        """Names by the flag that names each."""
        return {"--image-column": self.image} | ({"--caption-column": self.caption} if self.caption else {})


def table_images(block: InputBlock, columns: TableColumns) -> Iterator[CaptionedImage]:
    """Iterate over the rows of a block. Behind a damage, the rest of a file is one that cannot be read.

    Raises UserError for a column that is missing or holds something else.
    """
    for number, file in enumerate(block.files):
        row = block.first_row
        try:
            if block.kind == "mds":
                rows = _samples(file, MdsShard.model_validate(block.detail[number]), columns)
            else:
                rows = (
                    pair
                    for batch in record_batches(file, block, columns.by_flag, ROWS)
                    for pair in _rows(batch, columns, file)
                )
            for image, caption in rows:
                place = f"{file.shown}, {'sample' if block.kind == 'mds' else 'row'} {row}"
                if isinstance(caption, BadRecord):
                    yield CaptionedImage(place, None, None, problem=caption.reason)
                else:
                    yield CaptionedImage(place, image, caption)
                row += 1
        except BadRecord as error:
            damage = f"the rest, from row {row:,} on: {error.reason}" if row else error.reason
            yield CaptionedImage(file.shown, None, None, problem=damage, is_rest=True)


def _samples(file: SourceFile, shard: MdsShard, columns: TableColumns) -> Iterator[tuple[Any, Any]]:
    """Iterate over images and captions; a sample that cannot be read is (None, BadRecord)."""
    for sample in mds_samples(file, shard, columns.by_flag):
        if isinstance(sample, BadRecord):
            yield None, sample
            continue
        image, caption = sample if columns.caption else (*sample, None)
        if not isinstance(image, bytes):
            raise _no_images(file, columns.image, type(image).__name__)
        if columns.caption and not isinstance(caption, (str, bytes)):
            raise _no_text(file, columns.caption, type(caption).__name__)
        yield image, caption.encode(errors="surrogatepass") if isinstance(caption, str) else caption


def _rows(
    batch: pa.RecordBatch, columns: TableColumns, file: SourceFile
) -> Iterator[tuple[bytes | None, bytes | None]]:
    images = _images(batch.column(columns.image), columns.image, file).to_pylist()
    captions = [None] * len(images)
    if columns.caption is not None:
        captions = _captions(batch.column(columns.caption), columns.caption, file).to_pylist()
    yield from zip(images, captions, strict=True)


def _images(column: pa.Array, name: str, file: SourceFile) -> pa.Array:
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = compute.struct_field(column, "bytes")
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column
    raise _no_images(file, name, column.type)


def _captions(column: pa.Array, name: str, file: SourceFile) -> pa.Array:
    """Return captions as bytes, not yet checked to be UTF-8."""
    import pyarrow as pa

    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(is_kind(column.type) for is_kind in kinds):
        raise _no_text(file, name, column.type)
    return column.cast(pa.large_binary())


def _no_images(file: SourceFile, name: str, kind: object) -> UserError:
    return UserError(
        f"{file.place}: '{name}' holds {kind}, no image bytes; give --image-column with a column of bytes or of "
        "{bytes, path}."
    )


def _no_text(file: SourceFile, name: str, kind: object) -> UserError:
    return UserError(f"{file.place}: '{name}' holds {kind}, no text; give --caption-column with a column of text.")


@dataclass(frozen=True)
class ImageReader:
    """Reader of a source's blocks. Its items come in the order of the source."""

    annotations: Annotations
    columns: TableColumns
    max_pixels: int

    def read(self, block: InputBlock) -> Iterator[CaptionedImage]:
        """Iterate over a block's images, with one item for all that lies behind the damage of a file.

        Raises UserError for a missing column and for an image outside all class folders.
        """
        if block.kind == "tar":
            for file in block.files:
                yield from tar_images(file, self.annotations)
        elif block.kind == "images":
            yield from self._files(block)
        else:
            yield from table_images(block, self.columns)

    def _files(self, block: InputBlock) -> Iterator[CaptionedImage]:
        """Iterate over image files; the .txt file of a stem is that of all images of this stem."""
        beside = {file.stem: file for file in block.beside} if self.annotations.caption == "txt" else {}
        annotations = replace(self.annotations, lines=block.detail or {})

        def read(file: SourceFile) -> CaptionedImage:
            path, text = PurePosixPath(file.shown), beside.get(file.stem)
            name, label = str(path), annotations.label_of(path, str(path))
            try:
                caption = annotations.caption_of(path, _content(text, CAPTION_BYTES) if text else None)
            except OSError as error:
                return CaptionedImage(name, None, None, label, f"its caption: {first_line(error)}")
            try:
                return CaptionedImage(name, _content(file, most_image_bytes(self.max_pixels)), caption, label)
            except OSError as error:
                return CaptionedImage(name, None, None, label, first_line(error))

        remote = any(file.is_remote for file in block.files[:1])
        yield from _ahead(read, block.files) if remote else map(read, block.files)


def _content(file: SourceFile, limit: int) -> bytes | Path:
    """Return a file's content if it is behind a URI, else its path: decoding reads what it needs of it."""
    return read_source(file, limit) if file.is_remote else file.path


def _ahead(read: Callable[[SourceFile], CaptionedImage], files: Sequence[SourceFile]) -> Iterator[CaptionedImage]:
    """Yield `read` of each file in their order, some of them read at once by threads."""
    with ThreadPoolExecutor(AHEAD) as pool:
        waiting: deque[Future[CaptionedImage]] = deque()
        try:
            for file in files:
                waiting.append(pool.submit(read, file))
                if len(waiting) == AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
