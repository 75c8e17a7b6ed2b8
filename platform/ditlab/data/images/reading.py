"""Images with captions of a block of a source, read as a stream: image files, tars, tables.

Tables are Parquet, folders that the Hugging Face library `datasets` has saved, and MosaicML's MDS shards.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PurePosixPath

from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.block_imports.source_files import SourceFile, read_source
from ditlab.data.images.annotations import Annotations
from ditlab.data.images.decoding import CAPTION_BYTES, CaptionedImage, most_image_bytes
from ditlab.data.images.tar_files import tar_images
from ditlab.data.sources.records import read_records
from ditlab.errors import UserError, first_line
from ditlab.spec.importing import ImagesOptions

ROWS = 16
"""Rows of a table that are read at a time: an image each."""
AHEAD = 16
"""Files behind a URI that are read at once: each takes a request's latency."""


def read_images(block: InputBlock, annotations: Annotations, options: ImagesOptions) -> Iterator[CaptionedImage]:
    """Iterate over a block's images, in the order of the source, with one item for all behind the damage of a file.

    Raises UserError for a column that is missing or holds something else, and for an image outside all class folders.
    """
    if block.kind == "tar":
        for file in block.files:
            yield from tar_images(file, annotations)
    elif block.kind == "images":
        yield from _image_files(block, annotations, most_image_bytes(options.max_pixels))
    else:
        yield from _table_rows(block, options.image_column, options.caption_column, annotations.caption != "none")


def _table_rows(
    block: InputBlock, image_column: str, caption_column: str, has_captions: bool
) -> Iterator[CaptionedImage]:
    columns = {"--image-column": image_column} | ({"--caption-column": caption_column} if has_captions else {})
    for record in read_records(block, columns, ROWS):
        name = ", ".join(filter(None, [record.file.shown, record.where]))
        if record.problem:
            yield CaptionedImage(name, None, None, problem=record.problem.reason, is_rest=record.is_rest)
            continue
        image, caption = record.values if has_captions else (*record.values, None)
        if isinstance(image, dict) and "bytes" in image:
            image = image["bytes"]
        if isinstance(caption, str):
            caption = caption.encode(errors="surrogatepass")
        for flag, column, value, what, form in (
            ("--image-column", image_column, image, "image bytes", "bytes or of {bytes, path}"),
            ("--caption-column", caption_column, caption, "text", "text"),
        ):
            if value is not None and not isinstance(value, bytes):
                raise UserError(
                    f"{record.file.place}: '{column}' holds {type(value).__name__}, no {what}; give {flag} with a "
                    f"column of {form}."
                )
        yield CaptionedImage(name, image, caption)


def _image_files(block: InputBlock, annotations: Annotations, most_bytes: int) -> Iterator[CaptionedImage]:
    """Iterate over image files; the .txt file of a stem is that of all images of this stem."""
    beside = {file.stem: file for file in block.beside} if annotations.caption == "txt" else {}
    annotations = replace(annotations, lines=block.detail or {})

    def content(file: SourceFile, limit: int) -> bytes | Path:
        """Return a file's content if it is behind a URI, else its path: decoding reads what it needs of it."""
        return read_source(file, limit) if file.is_remote else file.path

    def read(file: SourceFile) -> CaptionedImage:
        path, text, caption, image, problem = PurePosixPath(file.shown), beside.get(file.stem), None, None, ""
        try:
            caption = content(text, CAPTION_BYTES) if text else None
            image = content(file, most_bytes)
        except OSError as error:
            problem = first_line(error)
        return annotations.annotate(path, str(path), image, caption, problem)

    if not block.files[0].is_remote:
        yield from map(read, block.files)
        return
    with ThreadPoolExecutor(AHEAD) as pool:
        waiting: deque[Future[CaptionedImage]] = deque()
        try:
            for file in block.files:
                waiting.append(pool.submit(read, file))
                if len(waiting) == AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
