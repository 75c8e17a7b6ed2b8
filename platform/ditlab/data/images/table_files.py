"""Tables of images: Parquet, folders that the Hugging Face library `datasets` has saved, MosaicML's MDS shards."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ditlab.data.block_imports.listing import SourceFile
from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.images.decoding import CaptionedImage
from ditlab.data.source_files import BadRecord
from ditlab.data.sources.arrow_streams import arrow_batches
from ditlab.data.sources.mds import MdsShard, mds_samples
from ditlab.data.sources.parquet import parquet_batches
from ditlab.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 16
"""Rows of a Parquet file that are read at a time: an image each."""


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
                rows = (pair for batch in _batches(file, block, columns) for pair in _rows(batch, columns, file))
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


def _batches(file: SourceFile, block: InputBlock, columns: TableColumns) -> "Iterator[pa.RecordBatch]":
    if block.kind == "arrow":
        return arrow_batches(file, columns.by_flag, block.start, block.stop)
    groups = None if block.stop is None else range(block.start, block.stop)
    return parquet_batches(file, columns.by_flag, ROWS, groups)


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
    batch: "pa.RecordBatch", columns: TableColumns, file: SourceFile
) -> Iterator[tuple[bytes | None, bytes | None]]:
    images = _images(batch.column(columns.image), columns.image, file).to_pylist()
    captions = [None] * len(images)
    if columns.caption is not None:
        captions = _captions(batch.column(columns.caption), columns.caption, file).to_pylist()
    yield from zip(images, captions, strict=True)


def _images(column: "pa.Array", name: str, file: SourceFile) -> "pa.Array":
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = compute.struct_field(column, "bytes")
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column
    raise _no_images(file, name, column.type)


def _captions(column: "pa.Array", name: str, file: SourceFile) -> "pa.Array":
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
