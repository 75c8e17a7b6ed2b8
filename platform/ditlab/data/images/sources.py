"""Sources of images with captions: a folder of files, WebDataset tars, Parquet. All are read as streams."""

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from ditlab.data.images.decoding import CaptionedImage
from ditlab.data.parquet import parquet_batches
from ditlab.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
PARQUET_ROWS = 16
"""Rows read at a time: an image each."""


class ImageSource(Protocol):
    """Iterable over images with captions, in an order that is always the same."""

    @property
    def caption_place(self) -> str:
        """Place of a caption, for messages: `a .txt file of the same stem`."""
        ...

    @property
    def num(self) -> int | None:
        """Number of images; None where it is unknown before they are read."""
        ...

    @property
    def files(self) -> Sequence[Path]:
        """Files that are read."""
        ...

    def __iter__(self) -> Iterator[CaptionedImage]:
        """Iterate over images. Raises UserError for a file that cannot be read and a missing column."""
        ...


def open_image_source(source: Path, image_column: str, caption_column: str) -> ImageSource:
    """Open the images of a file, or of a folder searched to its depth without names that begin with a dot.

    Raises UserError where there are none, and for a folder of several kinds of files.
    """
    root = source if source.is_dir() else source.parent
    found = [source] if source.is_file() else sorted(file for file in source.rglob("*") if _is_visible(file, source))
    images = [file for file in found if file.suffix.lower() in IMAGE_SUFFIXES]
    tars = [file for file in found if file.suffix == ".tar"]
    tables = [file for file in found if file.suffix == ".parquet"]
    kinds = {"images": images, ".tar files": tars, ".parquet files": tables}
    held = [kind for kind, files in kinds.items() if files]
    if not held:
        raise UserError(
            f"--source={source} holds no {', '.join(IMAGE_SUFFIXES)}, .tar or .parquet file; name one that does."
        )
    if len(held) > 1:
        raise UserError(f"--source={source} holds {' and '.join(held)}; name a folder of one kind, or a single file.")
    if images:
        return ImageFiles(root, images)
    return TarFiles(root, tars) if tars else ParquetFiles(root, tables, image_column, caption_column)


def _is_visible(file: Path, root: Path) -> bool:
    return not any(part.startswith(".") for part in file.relative_to(root).parts) and file.is_file()


@dataclass(frozen=True)
class ImageFiles:
    """Image files with a caption in the .txt file of the same stem; images of one stem share it."""

    root: Path
    files: Sequence[Path]
    caption_place: str = "a .txt file of the same stem"

    @property
    def num(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[CaptionedImage]:
        for file in self.files:
            caption = file.with_suffix(".txt")
            name = file.relative_to(self.root).as_posix()
            yield CaptionedImage(name, file, caption if caption.is_file() else None)


@dataclass(frozen=True)
class TarFiles:
    """WebDataset's tars: neighbouring members whose paths are the same up to the name's first dot belong together."""

    root: Path
    files: Sequence[Path]
    caption_place: str = "a .txt member of the same key beside it"

    num = None

    def __iter__(self) -> Iterator[CaptionedImage]:
        for file in self.files:
            try:
                with tarfile.open(file, "r|") as tar:
                    yield from self._of_tar(tar, file.relative_to(self.root).as_posix())
            except (tarfile.TarError, OSError, EOFError) as error:
                raise UserError(f"{file} is no tar that can be read ({error}); copy it again.") from error

    def _of_tar(self, tar: tarfile.TarFile, name: str) -> Iterator[CaptionedImage]:
        members = (member for member in tar if member.isfile() and _extension(member) in (*IMAGE_SUFFIXES, ".txt"))
        for _, group in groupby(members, _key):
            contents = {member.name: _content(tar, member) for member in group}  # in a stream, members are read in turn
            caption = next((content for path, content in contents.items() if path.endswith(".txt")), None)
            for path, content in contents.items():
                if not path.endswith(".txt"):
                    yield CaptionedImage(f"{name}: {path}", content, caption)


def _key(member: tarfile.TarInfo) -> str:
    path = PurePosixPath(member.name)
    return str(path.parent / path.name.partition(".")[0])


def _extension(member: tarfile.TarInfo) -> str:
    """Return all behind the name's first dot: `a.seg.png` is no image of its own but something about `a`."""
    name = PurePosixPath(member.name).name
    return "." + name.partition(".")[2].lower() if not name.startswith(".") else ""


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None, member.name  # it is a regular file
    return file.read()


@dataclass(frozen=True)
class ParquetFiles:
    """Parquet files with a column of image bytes, or of Hugging Face's {bytes, path}, and a column of captions."""

    root: Path
    files: Sequence[Path]
    image_column: str
    caption_column: str

    @property
    def caption_place(self) -> str:
        return f"column '{self.caption_column}' (--caption-column)"

    @property
    def num(self) -> int:
        from pyarrow.parquet import read_metadata

        return sum(read_metadata(file).num_rows for file in self.files)

    def __iter__(self) -> Iterator[CaptionedImage]:
        columns = {"--image-column": self.image_column, "--caption-column": self.caption_column}
        for file in self.files:
            row = 0
            for batch in parquet_batches(file, columns, PARQUET_ROWS):
                images = self._images(batch.column(self.image_column), file)
                captions = self._captions(batch.column(self.caption_column), file)
                for image, caption in zip(images.to_pylist(), captions.to_pylist(), strict=True):
                    yield CaptionedImage(f"{file.relative_to(self.root).as_posix()}, row {row}", image, caption)
                    row += 1

    def _images(self, column: "pa.Array", file: Path) -> "pa.Array":
        import pyarrow as pa
        from pyarrow import compute

        if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
            column = compute.struct_field(column, "bytes")
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            return column
        raise UserError(
            f"{file}: '{self.image_column}' holds {column.type}, no image bytes; give --image-column with a column of "
            "bytes or of {bytes, path}."
        )

    def _captions(self, column: "pa.Array", file: Path) -> "pa.Array":
        """Return captions as bytes, not yet checked to be UTF-8."""
        import pyarrow as pa

        kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
        if not any(is_kind(column.type) for is_kind in kinds):
            raise UserError(
                f"{file}: '{self.caption_column}' holds {column.type}, no text; give --caption-column with a column "
                "of text."
            )
        return column.cast(pa.large_binary())
