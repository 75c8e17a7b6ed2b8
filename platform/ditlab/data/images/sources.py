"""Sources of images with captions: a folder of files, WebDataset tars, Parquet. All are read as streams."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from ditlab.data.images.annotations import REMEDIES, Annotations, CaptionLines, check_known, read_captions
from ditlab.data.images.decoding import IMAGE_SUFFIXES, CaptionedImage
from ditlab.data.images.tar_files import TarFiles
from ditlab.data.parquet import parquet_batches, parquet_rows
from ditlab.data.source_files import BadRecord, visible_name
from ditlab.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

LINES = ".jsonl"
"""Ending of files of captions."""
PARQUET_ROWS = 16
"""Rows read at a time: an image each."""


class ImageSource(Protocol):
    """Iterable over images with captions, in an order that is always the same."""

    @property
    def annotations(self) -> Annotations:
        """Rules for captions and classes."""
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
        """Iterate over images, with one item for all that lies behind the damage of a file.

        Raises UserError for a missing column.
        """
        ...


@dataclass(frozen=True)
class SourceRules:
    """Places of images, captions and classes in a source."""

    image_column: str
    caption_column: str
    caption_from: str | None = None
    """`txt`, `folder`, `stem`, `column`, `none` or the path of a .jsonl; None: as the source's kind has it."""
    label_from: str | None = None
    """`folder`, or None for no classes."""


def open_image_source(source: Path, rules: SourceRules) -> ImageSource:
    """Open the images of a file, or of a folder searched to its depth without names that begin with a dot.

    Links to folders are not followed; links to files are. Raises UserError where there are none, for a folder of
    several kinds of files, for rules that such files do not have, and for captions of other images.
    """
    root = source if source.is_dir() else source.parent
    found = sorted(file for file in source.rglob("*") if _is_visible(file, source)) if source.is_dir() else [source]
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
    annotations = _annotations(rules, "column" if tables else "txt", source)
    if tables:
        return ParquetFiles(root, tables, rules.image_column, rules.caption_column, annotations)
    if tars:
        beside = replace(annotations, remedy="write one into a .txt member of the same key beside it")
        return TarFiles(root, tars, beside if annotations.caption == "txt" else annotations)
    names = sorted(visible_name(file.relative_to(root).as_posix()) for file in images)
    for name in names:
        annotations.label_of(PurePosixPath(name), name)  # refuses images outside all folders before one is decoded
    if annotations.caption == "lines":
        check_known(Path(str(rules.caption_from)), annotations.lines, set(names), source)
    return ImageFiles(root, images, annotations)


def _annotations(rules: SourceRules, default: str, source: Path) -> Annotations:
    """Read the rules for a kind of source, whose captions lie in `default` (`column`, `txt`)."""
    chosen = rules.caption_from or ("none" if rules.label_from else default)
    caption = "lines" if chosen.endswith(LINES) else chosen
    if (caption == "column") != (default == "column") and caption != "none":
        right = "column, or none" if default == "column" else f"txt, folder, stem, FILE{LINES} or none"
        what = ".parquet files" if default == "column" else "no .parquet files"
        raise UserError(f"--caption-from={chosen}: --source={source} holds {what}; give {right}.")
    if rules.label_from and default == "column":
        raise UserError(f"--label-from={rules.label_from}: --source={source} holds .parquet files; leave it out.")
    remedy = REMEDIES.get(caption, "").format(lines=chosen, column=rules.caption_column)
    lines = read_captions(Path(chosen), rules.caption_column) if caption == "lines" else CaptionLines({}, ())
    return Annotations(caption, rules.label_from, lines.captions, remedy, lines.damaged)


def _is_visible(file: Path, root: Path) -> bool:
    """Return True for files, special ones among them: these cannot be read, and are counted with the damaged ones."""
    return not any(part.startswith(".") for part in file.relative_to(root).parts) and not _is_folder(file)


def _is_folder(file: Path) -> bool:
    return not file.is_symlink() and file.is_dir()


@dataclass(frozen=True)
class ImageFiles:
    """Image files; the .txt file of a stem is that of all images of this stem."""

    root: Path
    files: Sequence[Path]
    annotations: Annotations

    @property
    def num(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[CaptionedImage]:
        for file in self.files:
            path = PurePosixPath(visible_name(file.relative_to(self.root).as_posix()))
            beside = file.with_suffix(".txt")
            caption = self.annotations.caption_of(path, beside if os.path.lexists(beside) else None)
            yield CaptionedImage(str(path), file, caption, self.annotations.label_of(path, str(path)))


@dataclass(frozen=True)
class ParquetFiles:
    """Parquet files with a column of image bytes, or of Hugging Face's {bytes, path}, and a column of captions."""

    root: Path
    files: Sequence[Path]
    image_column: str
    caption_column: str
    annotations: Annotations

    @cached_property
    def num(self) -> int | None:
        try:
            return sum(sum(parquet_rows(file)) for file in self.files)
        except BadRecord:
            return None

    def __iter__(self) -> Iterator[CaptionedImage]:
        for file in self.files:
            name = visible_name(file.relative_to(self.root).as_posix())
            row = 0
            try:
                for image, caption in self._rows(file):
                    yield CaptionedImage(f"{name}, row {row}", image, caption)
                    row += 1
            except BadRecord as error:
                damage = f"the rest, from row {row:,} on: {error.reason}" if row else error.reason
                yield CaptionedImage(name, None, None, problem=damage, is_rest=True)

    def _rows(self, file: Path) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Iterate over a file's images and captions. Raises BadRecord where the file is damaged."""
        columns = {"--image-column": self.image_column}
        if self.annotations.caption != "none":
            columns["--caption-column"] = self.caption_column
        for batch in parquet_batches(file, columns, PARQUET_ROWS):
            images = self._images(batch.column(self.image_column), file).to_pylist()
            captions = [None] * len(images)
            if self.annotations.caption != "none":
                captions = self._captions(batch.column(self.caption_column), file).to_pylist()
            yield from zip(images, captions, strict=True)

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
