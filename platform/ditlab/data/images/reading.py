"""Images with captions of a block of a source, read as a stream."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ditlab.data.block_imports.listing import SourceFile
from ditlab.data.block_imports.opening import read_source
from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.images.annotations import Annotations
from ditlab.data.images.decoding import CAPTION_BYTES, CaptionedImage, most_image_bytes
from ditlab.data.images.table_files import TableColumns, table_images
from ditlab.data.images.tar_files import tar_images
from ditlab.errors import first_line

AHEAD = 16
"""Files behind a URI that are read at once: each takes a request's latency."""


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
