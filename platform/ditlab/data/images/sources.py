"""Sources of images with captions and classes, cut into blocks and read as streams: image files,
tars, Parquet.

Of every file, member and row it is known in the end whether it was used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from ditlab.data.images.annotations import (
    ALONE,
    CAPTIONS,
    KINDS,
    LABELS,
    METADATA,
    SHARED,
    Annotations,
    caption_bytes,
    caption_note,
    class_name,
    class_note,
    class_notes,
    class_table,
    find_annotations,
    folder_class,
    label_of,
    listed_classes,
    named_class,
    named_numbers,
)
from ditlab.data.images.decoding import CaptionedImage
from ditlab.data.images.pictures import IMAGE_SUFFIXES
from ditlab.data.images.tar_samples import tar_images, tar_labels
from ditlab.data.import_blocks import InputBlock, block_bytes, group_files
from ditlab.data.processes import results_in_order
from ditlab.data.source_files import (
    ESCAPED,
    UNREADABLE,
    BadRecord,
    SourceFile,
    endings,
    list_source,
    num_escaped,
    read_source,
    with_suffix,
    zip_names_note,
)
from ditlab.data.sources.records import files_level, read_records, record_blocks, record_files
from ditlab.data.sources.tables import other_columns
from ditlab.data.stores.receipt import REPLACED, DroppedRecord, ReceiptLevel
from ditlab.errors import UserError, first_line, shortened
from ditlab.spec.importing import ImagesOptions
from ditlab.spec.values import escaped

IMAGES = "--image-column"
"""Flag that names a table's column of images."""
ROWS = 16
"""Rows of a table that are read at a time: an image each."""
AHEAD = 16
"""Files behind a URI that are read at once: each takes a request's latency."""
BESIDE = "captions and classes"
"""Use of files and members that are an image's caption or class."""


@dataclass(frozen=True)
class ImageSource:
    """Source of images, cut into blocks."""

    annotations: Annotations
    """Rules for captions and classes; of image files, without the lines of each, which its block
    has.
    """
    blocks: Sequence[InputBlock]
    classes: Sequence[str]
    """Names of all classes in their order: a class's number is its place here."""
    files: ReceiptLevel
    """Uses of the source's files. Of image files, `images` counts those that are tried."""
    files_left_out: Sequence[DroppedRecord] = ()
    """The first files that are dropped."""
    warnings: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Numbers of `SHARED` images and `ESCAPED` names, as far as the listing has them."""
    has_named_numbers: bool = False
    """True where the source itself numbers its classes."""


def open_image_source(options: ImagesOptions) -> ImageSource:
    """Cut the images of a file, folder, zip, pattern or URI into blocks, a function of the source
    alone.

    Raises UserError for none, for several kinds of files, for rules they do not have, and for
    captions of other images.
    """
    listing = list_source(options.source)
    kind, files, metadata = _files_of_kind(options, listing)
    annotations = find_annotations(options, kind, metadata)
    if kind == "images":
        source = _image_files(listing, files, metadata, annotations, options.source)
    elif kind == "tar":
        source = _tar_files(listing, files, annotations)
    else:
        source = _table_files(listing, files, annotations)
    notes = [*source.warnings, *filter(None, [zip_names_note(listing)])]
    tables = files if kind == "parquet" else metadata
    for table in tables[:1]:
        notes += [caption_note(options, annotations, table), class_note(annotations, table)]
    is_ordered = source.has_named_numbers or options.classes is not None
    classes = listed_classes(options, annotations, source.classes)
    notes += class_notes(classes, is_ordered)
    return replace(source, classes=classes, warnings=[*filter(None, notes)])


def _files_of_kind(
    options: ImagesOptions, listing: Sequence[SourceFile]
) -> tuple[str, Sequence[SourceFile], Sequence[SourceFile]]:
    """Return the kind of a source, its files that hold images, and its metadata files. Raises
    UserError for none, and for several kinds of files.
    """
    files = [file for file in listing if not file.set_aside]
    held = {"images": with_suffix(files, *IMAGE_SUFFIXES), "tar": with_suffix(files, ".tar")}
    metadata: list[SourceFile] = []
    if held["images"]:
        metadata = [file for file in files if file.name.rpartition("/")[2].lower() in METADATA]
    held["parquet"] = [file for file in record_files(files, ("parquet",)) if file not in metadata]
    kinds = [kind for kind, found in held.items() if found]
    if not kinds:
        raise UserError(
            f"--source={options.source} holds no {', '.join(IMAGE_SUFFIXES)}, .tar or .parquet "
            f"file ({endings(listing)}); name one that does."
        )
    if len(kinds) > 1:
        names = " and ".join(KINDS[kind] for kind in kinds)
        raise UserError(
            f"--source={options.source} holds {names}; name a folder of one kind, or a single file."
        )
    return kinds[0], held[kinds[0]], metadata


def _tar_files(
    listing: Sequence[SourceFile], tars: Sequence[SourceFile], annotations: Annotations
) -> ImageSource:
    """Cut tars into blocks; their classes are read from all of them."""
    labels: set[str | None] = set()
    if annotations.label is not None:
        with ThreadPoolExecutor(AHEAD if tars[0].is_remote else 1) as pool:
            labels = labels.union(*pool.map(lambda file: tar_labels(file, annotations), tars))
    blocks = [InputBlock(number, group, "tar") for number, group in enumerate(group_files(tars))]
    level, left_out = files_level(listing, {"read": tars})
    return ImageSource(annotations, blocks, class_table(labels), level, left_out)


def _table_files(
    listing: Sequence[SourceFile], tables: Sequence[SourceFile], annotations: Annotations
) -> ImageSource:
    """Cut tables into blocks; their classes are the column's names, or its values."""
    blocks = record_blocks(tables, block_bytes(sum(file.size for file in tables)))
    classes: Sequence[str] = ()
    if annotations.label:
        column = annotations.keys[LABELS]
        names = named_numbers(tables[0], column)
        classes = names or _column_classes(blocks, column)
        annotations = replace(annotations, numbered=names)
    level, left_out = files_level(listing, {"read": tables})
    return ImageSource(
        annotations,
        blocks,
        classes,
        level,
        left_out,
        counts={ESCAPED: num_escaped(file.name for file in listing)},
        has_named_numbers=bool(annotations.numbered),
    )


def _image_files(
    listing: Sequence[SourceFile],
    images: Sequence[SourceFile],
    metadata: Sequence[SourceFile],
    annotations: Annotations,
    source: str,
) -> ImageSource:
    """Cut the images of a listing into blocks, each with the files and lines that belong to it."""
    _refuse_unknown_images(annotations, images, metadata, source)
    files = [file for file in listing if not file.set_aside]
    companions = with_suffix(files, *annotations.companions)
    beside = {(file.stem, file.suffix): file for file in companions}
    stems = Counter(file.stem for file in images)
    taken = [file for file in beside.values() if file.stem in stems]
    used = {"images": images, BESIDE: taken, "metadata": metadata if annotations.lines else []}
    reasons = dict.fromkeys([file.name for file in companions], REPLACED)
    reasons |= dict.fromkeys([file.name for file in beside.values()], ALONE)
    level, left_out = files_level(listing, used, reasons)
    blocks = _image_blocks(images, beside, annotations)
    folders = _class_folders(source, files)
    sharing = [stems[stem] for stem in {file.stem for file in taken} if stems[stem] > 1]
    names = [file.name for file in listing]
    labels = class_table(_image_labels(annotations, images, taken, folders))
    has_named_numbers = set(labels) <= set(annotations.numbered)
    return ImageSource(
        replace(annotations, lines={}),
        blocks,
        annotations.numbered if has_named_numbers else labels,
        level,
        left_out,
        counts={SHARED: sum(sharing), ESCAPED: num_escaped([*names, *folders])},
        has_named_numbers=has_named_numbers,
    )


def _image_labels(
    annotations: Annotations,
    images: Sequence[SourceFile],
    beside: Sequence[SourceFile],
    folders: Iterable[str],
) -> Iterable[str | None]:
    """Return the classes of image files, from the origin of classes."""
    if annotations.label == "folder":
        labels = {folder_class(file.name, file.name) for file in images}
        return labels | {escaped(folder) for folder in folders}
    if annotations.label == "cls":
        return map(_class_beside, with_suffix(beside, ".cls"))
    return [label for _, label in annotations.lines.values()]


def _refuse_unknown_images(
    annotations: Annotations,
    images: Sequence[SourceFile],
    metadata: Sequence[SourceFile],
    source: str,
) -> None:
    """Raise UserError where lines of metadata name images that a source does not hold."""
    names = {file.name for file in images}
    unknown = [name for name in annotations.lines if name not in names]
    if unknown:
        raise UserError(
            f"{metadata[0].place} names {shortened(unknown, 1)}, which --source={source} does "
            "not hold; correct the paths, which begin beside that file, or remove the lines."
        )


def _image_blocks(
    images: Sequence[SourceFile],
    beside: Mapping[tuple[str, str], SourceFile],
    annotations: Annotations,
) -> list[InputBlock]:
    """Cut images into blocks, each with its captions and classes: files by stem and ending, or
    lines.
    """
    blocks: list[InputBlock] = []
    lines = annotations.lines
    for group in group_files(images):
        own = {file.name: lines[file.name] for file in group if file.name in lines}
        places = product(dict.fromkeys(file.stem for file in group), sorted(annotations.companions))
        files_beside = tuple(beside[place] for place in places if place in beside)
        blocks.append(
            InputBlock(len(blocks), group, "images", beside=files_beside, detail=own or None)
        )
    return blocks


def _class_folders(source: str, files: Sequence[SourceFile]) -> set[str]:
    """Return the folders directly below a source, on this machine empty ones too: classes without a
    sample.
    """
    folders = {file.name.partition("/")[0] for file in files if "/" in file.name}
    if Path(source).is_dir():
        below = (
            SourceFile("", each.name, 0, "") for each in Path(source).iterdir() if each.is_dir()
        )
        folders.update(each.name for each in below if not each.set_aside)
    return folders


def _class_beside(file: SourceFile) -> str | None:
    """Return the class that a file beside an image names; None where it cannot be read, as is told
    with its image.
    """
    with suppress(BadRecord, *UNREADABLE):
        return named_class(read_source(file))
    return None


def _column_classes(blocks: Sequence[InputBlock], column: str) -> Sequence[str]:
    """Return the classes of a column: the values that it holds."""
    found: set[str | None] = set()
    for block in blocks:
        for record in read_records(block, {LABELS: column}, 4096):
            found.update(_converted(LABELS, value, column, record.file) for value in record.values)
    return class_table(found)


def read_images(
    block: InputBlock, annotations: Annotations, image_column: str
) -> Iterator[CaptionedImage | DroppedRecord]:
    """Iterate over a block's images, in the order of the source, with one item for all behind the
    damage of a file.

    Raises UserError for a column that is missing or holds something else, and for an image outside
    all class folders.
    """
    if block.kind == "tar":
        for file in block.files:
            yield from tar_images(file, annotations)
    elif block.kind == "images":
        yield from _read_image_files(block, annotations)
    else:
        yield from _read_tables(block, annotations, image_column)


def image_bytes(value: Any) -> bytes | None:
    """Return an image's file as it is; None for null. Raises TypeError for another type."""
    if isinstance(value, dict) and "bytes" in value:
        value = value["bytes"]
    if value is None or isinstance(value, bytes):
        return value
    raise TypeError(type(value).__name__)


COLUMNS: dict[str, tuple[Callable[[Any], Any], str]] = {
    IMAGES: (image_bytes, "bytes or of {bytes, path}"),
    CAPTIONS: (caption_bytes, "text, or of lists of text"),
    LABELS: (class_name, "whole numbers or text"),
}
"""Conversion of a column's values, and what its column is one of, by the flag that names the
column.
"""


def _converted(flag: str, value: Any, column: str, file: SourceFile) -> Any:
    """Return a value of the column that a flag names as images, captions or classes have it. Raises
    UserError.
    """
    convert, form = COLUMNS[flag]
    try:
        return convert(value)
    except TypeError as error:
        raise UserError(
            f"{file.place}: '{column}' holds {error}; give {flag} with a column of {form} "
            f"({other_columns(file, column)})."
        ) from None


def _read_tables(
    block: InputBlock, annotations: Annotations, image_column: str
) -> Iterator[CaptionedImage | DroppedRecord]:
    """Iterate over the rows of tables."""
    columns = {IMAGES: image_column, **annotations.keys}
    for record in read_records(block, columns, ROWS):
        if record.problem:
            yield record.dropped()
            continue
        values = dict(zip(columns, record.values, strict=True))
        for flag, column in columns.items():
            values[flag] = _converted(flag, values[flag], column, record.file)
        label = values.get(LABELS)
        if annotations.numbered:
            label = label_of(label, _numbered_in(record.file, annotations))
        yield CaptionedImage(record.place, values[IMAGES], values.get(CAPTIONS), label)


@lru_cache(maxsize=16)
def _names_of(table: SourceFile, column: str) -> tuple[str, ...]:
    return named_numbers(table, column)


def _numbered_in(table: SourceFile, annotations: Annotations) -> Sequence[str]:
    """Return the names of the classes' numbers in one of several tables. Raises UserError for names
    that the first table has not.
    """
    names = _names_of(table, annotations.keys[LABELS])
    more = [name for name in names if name not in annotations.numbered]
    if more:
        raise UserError(
            f"{table.place} has other classes than the first table ({shortened(more, 3)}); name "
            "tables of the same classes as --source."
        )
    return names or annotations.numbered


def _read_image_files(block: InputBlock, annotations: Annotations) -> Iterator[CaptionedImage]:
    """Iterate over image files; the .txt file of a stem is that of all images of this stem."""
    beside: dict[str, list[SourceFile]] = {}
    for each in block.beside:
        beside.setdefault(each.stem, []).append(each)
    annotations = replace(annotations, lines=block.detail or {})

    def read(file: SourceFile) -> CaptionedImage:
        problem = ""
        contents: dict[str, bytes] = {}
        image: bytes | Path | None = None
        try:
            for companion in beside.get(file.stem, []):
                contents[companion.suffix] = read_source(companion)
            # of a file of this machine the path: decoding reads what it needs of it
            image = file.path if file.has_path else read_source(file)
        except UNREADABLE as error:
            problem = first_line(error)
        return annotations.annotate(file.name, file.name, image, contents, problem)

    if not block.files[0].is_remote:
        yield from map(read, block.files)
        return
    with ThreadPoolExecutor(AHEAD) as pool:
        yield from results_in_order(pool, read, block.files, AHEAD)
