"""Tables of images: Parquet, and data sets that the Hugging Face library `datasets` has saved to a disk."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ditlab.data.block_imports.listing import SourceFile
from ditlab.data.block_imports.opening import open_source
from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.images.decoding import CaptionedImage
from ditlab.data.parquet import parquet_batches
from ditlab.data.source_files import BadRecord
from ditlab.errors import UserError, first_line, nearest

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 16
"""Rows of a Parquet file that are read at a time: an image each."""
_ARROW_FILE = b"ARROW1"
"""First bytes of Arrow's file format; the library itself writes the stream format."""


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
    for file in block.files:
        row = block.first_row
        try:
            for batch in _batches(file, block, columns):
                for image, caption in _rows(batch, columns, file):
                    yield CaptionedImage(f"{file.shown}, row {row}", image, caption)
                    row += 1
        except BadRecord as error:
            damage = f"the rest, from row {row:,} on: {error.reason}" if row else error.reason
            yield CaptionedImage(file.shown, None, None, problem=damage, is_rest=True)


def _batches(file: SourceFile, block: InputBlock, columns: TableColumns) -> "Iterator[pa.RecordBatch]":
    if block.kind == "arrow":
        return _arrow_batches(file, columns)
    groups = None if block.stop is None else range(block.start, block.stop)
    return parquet_batches(file, columns.by_flag, ROWS, groups)


def _arrow_batches(file: SourceFile, columns: TableColumns) -> "Iterator[pa.RecordBatch]":
    """Iterate over the record batches of an Arrow file or stream. Raises BadRecord where it is damaged."""
    import pyarrow as pa

    try:
        with open_source(file) as source:
            is_file = source.read(len(_ARROW_FILE)) == _ARROW_FILE
            source.seek(0)
            if is_file:
                table = pa.ipc.open_file(source)
                batches = map(table.get_batch, range(table.num_record_batches))
            else:
                table = pa.ipc.open_stream(source)
                batches = iter(table)
            names = table.schema.names
            for flag, column in columns.by_flag.items():
                if column not in names:
                    raise UserError(f"{file.place} has no column '{column}'; {nearest(column, names)} Give {flag}.")
            for batch in batches:
                batch.validate()
                yield batch
    except (pa.ArrowException, OSError, MemoryError) as error:
        reason = f"no Arrow file that can be read ({first_line(error)})"
        raise BadRecord.at(file.place, reason, "copy it again") from error


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
    raise UserError(
        f"{file.place}: '{name}' holds {column.type}, no image bytes; give --image-column with a column of bytes or of "
        "{bytes, path}."
    )


def _captions(column: "pa.Array", name: str, file: SourceFile) -> "pa.Array":
    """Return captions as bytes, not yet checked to be UTF-8."""
    import pyarrow as pa

    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(is_kind(column.type) for is_kind in kinds):
        raise UserError(
            f"{file.place}: '{name}' holds {column.type}, no text; give --caption-column with a column of text."
        )
    return column.cast(pa.large_binary())
