"""Images with captions of a block of a source, read as a stream: image files, tars, tables.

Tables are Parquet, folders that the Hugging Face library `datasets` has saved, and MosaicML's MDS shards.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.block_imports.source_files import SourceFile, read_source
from ditlab.data.images.annotations import Annotations
from ditlab.data.images.decoding import CAPTION_BYTES, CaptionedImage, most_image_bytes
from ditlab.data.images.tar_files import tar_images
from ditlab.data.sources.records import read_records
from ditlab.errors import UserError, first_line

ROWS = 16
"""Rows of a table that are read at a time: an image each."""
AHEAD = 16
"""Files behind a URI that are read at once: each takes a request's latency."""


@dataclass(frozen=True)
class ImageReader:
    """Reader of a source's blocks. Its items come in the order of the source."""

    annotations: Annotations
    image_column: str
    caption_column: str | None
    """None where captions are not read."""
    max_pixels: int

    def read(self, block: InputBlock) -> Iterator[CaptionedImage]:
        """Iterate over a block's images, with one item for all that lies behind the damage of a file.

        Raises UserError for a column that is missing or holds something else, and for an image outside all class
        folders.
        """
        if block.kind == "tar":
            for file in block.files:
                yield from tar_images(file, self.annotations)
        elif block.kind == "images":
            yield from self._files(block)
        else:
            yield from self._records(block)

    def _records(self, block: InputBlock) -> Iterator[CaptionedImage]:
        columns = {"--image-column": self.image_column}
        columns |= {"--caption-column": self.caption_column} if self.caption_column else {}
        for record in read_records(block, columns, ROWS):
            name = ", ".join(filter(None, [record.file.shown, record.where]))
            if record.problem:
                yield CaptionedImage(name, None, None, problem=record.problem.reason, is_rest=record.is_rest)
                continue
            image, caption = record.values if self.caption_column else (*record.values, None)
            yield CaptionedImage(name, self._image(image, record.file), self._caption(caption, record.file))

    def _image(self, value: Any, file: SourceFile) -> bytes | None:
        if isinstance(value, dict) and "bytes" in value:
            value = value["bytes"]
        if value is None or isinstance(value, bytes):
            return value
        raise UserError(
            f"{file.place}: '{self.image_column}' holds {type(value).__name__}, no image bytes; give --image-column "
            "with a column of bytes or of {bytes, path}."
        )

    def _caption(self, value: Any, file: SourceFile) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode(errors="surrogatepass")
        raise UserError(
            f"{file.place}: '{self.caption_column}' holds {type(value).__name__}, no text; give --caption-column with "
            "a column of text."
        )

    def _files(self, block: InputBlock) -> Iterator[CaptionedImage]:
        """Iterate over image files; the .txt file of a stem is that of all images of this stem."""
        beside = {file.stem: file for file in block.beside} if self.annotations.caption == "txt" else {}
        annotations = replace(self.annotations, lines=block.detail or {})

        def read(file: SourceFile) -> CaptionedImage:
            path, text, caption, image, problem = PurePosixPath(file.shown), beside.get(file.stem), None, None, ""
            try:
                caption = _content(text, CAPTION_BYTES) if text else None
                image = _content(file, most_image_bytes(self.max_pixels))
            except OSError as error:
                problem = first_line(error)
            return annotations.annotate(path, str(path), image, caption, problem)

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
