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
from itertools import groupby, product
from pathlib import Path
from typing import Any

from ditlab.choices import Choice
from ditlab.data.images.annotations import (
    CAPTIONS,
    LABELS,
    METADATA,
    WHOLE_NUMBER,
    Annotations,
    Line,
    caption_bytes,
    class_name,
    class_notes,
    class_table,
    folder_class,
    named_class,
    read_classes,
    read_lines,
)
from ditlab.data.images.decoding import CaptionedImage
from ditlab.data.images.pictures import IMAGE_SUFFIXES
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
from ditlab.data.sources.records import (
    column_names,
    files_level,
    not_read,
    read_records,
    record_blocks,
    record_files,
)
from ditlab.data.sources.tables import named_classes, other_columns, table_schema
from ditlab.data.sources.tars import tar_members
from ditlab.data.stores.receipt import (
    DAMAGED,
    NO_RECORD,
    REPLACED,
    DroppedRecord,
    ReceiptLevel,
)
from ditlab.errors import UserError, first_line, shortened
from ditlab.spec.importing import ImagesOptions
from ditlab.spec.values import escaped

KINDS = {"images": "images", "tar": ".tar files", "parquet": ".parquet files"}
"""Kinds of blocks, and their names for people."""
IMAGES = "--image-column"
"""Flag that names a table's column of images."""
ROWS = 16
"""Rows of a table that are read at a time: an image each."""
AHEAD = 16
"""Files behind a URI that are read at once: each takes a request's latency."""
BESIDE = "captions and classes"
"""Use of files and members that are an image's caption or class."""
ALONE = "without an image"
"""Reason of captions and classes that belong to no image."""
SHARED = "images that share a caption or class file with another"
REPEATED = "images of a tar with the name of one before"
"""Names of the counts of these."""
CAPTION_NAMES = ("caption", "captions", "description", "prompt", "text", "txt")
LABEL_NAMES = ("class", "class_id", "class_name", "category", "label", "labels", "target")
"""Names of columns that hold captions, or classes, as people name them."""


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
    annotations = _annotations(options, kinds[0], metadata)
    if kinds[0] == "images":
        source = _image_files(listing, held["images"], metadata, annotations, options.source)
    elif kinds[0] == "tar":
        source = _tar_files(listing, held["tar"], annotations)
    else:
        source = _table_files(listing, held["parquet"], annotations)
    tables = metadata or held["parquet"]
    notes = [*source.warnings, zip_names_note(listing)]
    if tables:
        notes += _column_notes(options, annotations, tables[0])
    return _with_classes(options, replace(source, warnings=[*filter(None, notes)]))


def _with_classes(options: ImagesOptions, source: ImageSource) -> ImageSource:
    """Return a source with the classes of --classes, if any, and what there is to say of its
    classes. Raises UserError for classes that are not listed there.
    """
    classes = source.classes
    if options.classes is not None:
        option = f"--classes={options.classes}"
        if not source.annotations.label:
            raise UserError(
                f"{option} lists classes, and none are read; give --label-from or --label-column."
            )
        classes = read_classes(Path(options.classes))
        missing = [name for name in source.classes if name not in set(classes)]
        if missing:
            raise UserError(
                f"{option} lacks {shortened(missing, 3)}, of the classes of "
                f"--source={options.source}; add a line for each."
            )
    is_ordered = source.has_named_numbers or options.classes is not None
    notes = class_notes(classes, is_ordered)
    return replace(source, classes=classes, warnings=[*source.warnings, *notes])


def _column_notes(options: ImagesOptions, annotations: Annotations, table: SourceFile) -> list[str]:
    """Return sentences on columns of a table that could be captions or classes and are not read."""
    names: Sequence[str] = ()
    with suppress(*UNREADABLE, BadRecord):  # told as its rows are read
        names = column_names(table)
    notes = []
    is_default = "caption_column" not in options.model_fields_set
    others = [
        name
        for name in names
        if name.lower() in CAPTION_NAMES and name not in annotations.keys.values()
    ]
    if CAPTIONS in annotations.keys and is_default and others:
        taken = Choice(f"column {options.caption_column}", tuple(others), option=CAPTIONS)
        notes.append(f"Captions are of {taken}.")
    held = [name for name in names if name.lower() in LABEL_NAMES]
    with suppress(*UNREADABLE):
        held += [name for name in named_classes(table_schema(table)) if name not in held]
    if annotations.label is None and held:
        verb = "holds" if len(held) == 1 else "hold"
        columns = "Column" if len(held) == 1 else "Columns"
        quoted = ", ".join(f"'{name}'" for name in held)
        notes.append(
            f"{columns} {quoted} {verb} classes, which were not imported; give --label-column "
            f"{held[0]} for them."
        )
    return notes


def _annotations(options: ImagesOptions, kind: str, metadata: Sequence[SourceFile]) -> Annotations:
    """Read the rules for a kind of source. Raises UserError for an origin that this kind does not
    have.
    """
    caption = _caption_origin(options, kind, bool(metadata))
    label = _label_origin(options, kind, bool(metadata))
    keys = {}
    if caption in ("metadata", "column"):
        keys[CAPTIONS] = options.caption_column
    if options.label_column:
        keys[LABELS] = options.label_column
    lines: Mapping[str, Line] = read_lines(metadata, keys) if metadata and keys else {}
    return Annotations(caption, label, keys, lines)


def _caption_origin(options: ImagesOptions, kind: str, has_metadata: bool) -> str:
    """Return where captions are, as asked or as a kind of source has them by itself. Raises
    UserError.
    """
    is_table = kind == "parquet"
    if is_table:
        default = "column"
    elif has_metadata:
        default = "metadata"
    else:
        default = "none" if options.label_from or options.label_column else "txt"
    caption = options.caption_from or default
    has = {"column": is_table, "txt": not is_table, "metadata": has_metadata, "none": True}
    if not has[caption]:
        raise UserError(
            f"--caption-from={caption}: --source={options.source} holds {KINDS[kind]}, which "
            "have their captions in a column (Parquet), in .txt files of the same stem, or in "
            "a metadata.jsonl or .csv beside images."
        )
    return caption


def _label_origin(options: ImagesOptions, kind: str, has_metadata: bool) -> str | None:
    """Return where classes are; None for no classes. Raises UserError for what a kind of source
    does not have.
    """
    is_table = kind == "parquet"
    if options.label_column:
        if not (is_table or has_metadata):
            raise _no_classes(options, kind, "--label-from")
        return "column"
    if options.label_from and is_table:
        raise _no_classes(options, kind, "--label-column")
    return options.label_from


def _no_classes(options: ImagesOptions, kind: str, right: str) -> UserError:
    return UserError(f"classes: --source={options.source} holds {KINDS[kind]}; give {right}.")


def _tar_files(
    listing: Sequence[SourceFile], tars: Sequence[SourceFile], annotations: Annotations
) -> ImageSource:
    """Cut tars into blocks; their classes are read from all of them."""
    labels: set[str | None] = set()
    if annotations.label is not None:
        with ThreadPoolExecutor(AHEAD if tars[0].is_remote else 1) as pool:
            labels = labels.union(*pool.map(lambda file: _tar_labels(file, annotations), tars))
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
        names = _named_numbers(tables[0], column)
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


def _named_numbers(table: SourceFile, column: str) -> tuple[str, ...]:
    """Return the names of a column's numbers, as its table has them; none where it has none or
    cannot be read. Raises UserError for a name that is there twice.
    """
    names: tuple[str, ...] = ()
    with suppress(*UNREADABLE):  # told as its rows are read
        names = named_classes(table_schema(table)).get(column, ())
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise UserError(
            f"{table.place}: '{column}' has two classes '{twice[0]}'; give one of them another "
            "name, or remove the names to import numbers."
        )
    return names


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
    sharing = Counter(file.stem for file in images)
    used = {
        "images": images,
        BESIDE: [file for file in beside.values() if sharing[file.stem]],
        "metadata": metadata if annotations.lines else [],
    }
    reasons = dict.fromkeys([file.name for file in companions], REPLACED)
    reasons |= dict.fromkeys([file.name for file in beside.values()], ALONE)
    level, left_out = files_level(listing, used, reasons)
    blocks = _image_blocks(images, beside, annotations)
    folders = _class_folders(source, files)
    labels: Iterable[str | None]
    if annotations.label == "folder":
        labels = {folder_class(file.name, file.name) for file in images}
        labels |= {escaped(folder) for folder in folders}
    elif annotations.label == "cls":
        labels = map(_class_beside, with_suffix(used[BESIDE], ".cls"))
    else:
        labels = [label for _, label in annotations.lines.values()]
    with_companion = {file.stem for file in used[BESIDE]}
    counts = {
        SHARED: sum(
            number for stem, number in sharing.items() if number > 1 and stem in with_companion
        ),
        ESCAPED: num_escaped([*(file.name for file in listing), *folders]),
    }
    return ImageSource(
        replace(annotations, lines={}),
        blocks,
        class_table(labels),
        level,
        left_out,
        counts=counts,
    )


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
            label = _label_of(label, _numbered_in(record.file, annotations))
        yield CaptionedImage(record.place, values[IMAGES], values.get(CAPTIONS), label)


def _label_of(value: str | None, names: Sequence[str]) -> str | None:
    """Return the class of a value of a column of numbers that have names: by its number, or its
    name; None for neither.
    """
    if value is None or value in names:
        return value
    if WHOLE_NUMBER.fullmatch(value) and 0 <= int(value) < len(names):
        return names[int(value)]
    return None


@lru_cache(maxsize=16)
def _names_of(table: SourceFile, column: str) -> tuple[str, ...]:
    return _named_numbers(table, column)


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


def _key_and_ending(name: str) -> tuple[str, str]:
    """Split the path of a tar's member as WebDataset does, at its name's first dot: a sample's key,
    and an ending.
    """
    folder, slash, file = name.rpartition("/")
    stem, dot, ending = file.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{ending}".lower()


def tar_images(
    file: SourceFile, annotations: Annotations
) -> Iterator[CaptionedImage | DroppedRecord]:
    """Iterate over the images of a tar, and what is none; all from the sample before a damage on is
    one item.

    Neighbours of one key are one sample.
    """
    damage: list[str] = []
    wanted = (*IMAGE_SUFFIXES, *annotations.companions)
    before: set[int] = set()  # hashes of names: a tar may have millions
    for _, group in groupby(
        tar_members(file, damage, wanted), lambda member: _key_and_ending(member[0])[0]
    ):
        members = list(group)
        if damage:  # known with the last sample, which may lack its caption
            break
        for item in _sample(file, members, annotations):
            if isinstance(item, DroppedRecord):
                yield item
                continue
            remarks = item.remarks
            if hash(item.name) in before:
                remarks = (*remarks, REPEATED)
            before.add(hash(item.name))
            yield replace(item, remarks=remarks)
    for each in damage:
        yield DroppedRecord(place=file.name, reason=DAMAGED, detail=each)


def _sample(
    file: SourceFile, members: Sequence[tuple[str, bytes | str | None]], annotations: Annotations
) -> Iterator[CaptionedImage | DroppedRecord]:
    """Iterate over the images of neighbours of one key, and over those that are none of their
    own.
    """
    images: dict[str, bytes | str | None] = {}
    beside: dict[str, tuple[str, bytes]] = {}
    for name, content in members:
        ending = _key_and_ending(name)[1]
        as_file = SourceFile("", name.removeprefix("./"), 0, "")
        place = f"{file.name}: {as_file.name}"
        if as_file.set_aside or not (ending in IMAGE_SUFFIXES or ending in annotations.companions):
            reason = as_file.set_aside or not_read(ending or as_file.ending)
            yield DroppedRecord(place=place, reason=reason)
        elif ending in IMAGE_SUFFIXES:
            if as_file.name in images:
                yield DroppedRecord(place=place, reason=REPLACED)
            images[as_file.name] = content
        elif isinstance(content, bytes):
            if ending in beside:
                yield DroppedRecord(place=beside[ending][0], reason=REPLACED, detail=f"by {name}")
            beside[ending] = (place, content)
        else:
            yield DroppedRecord(place=place, reason=NO_RECORD, detail=content or "")
    contents = {ending: content for ending, (_, content) in beside.items()}
    used = len(beside)
    shared = [SHARED] if beside and len(images) > 1 else []
    for name, content in images.items():
        problem = content if isinstance(content, str) else ""
        one = annotations.annotate(name, f"{file.name}: {name}", content, contents, problem)
        remarks = shared + [ESCAPED] * num_escaped([name])
        yield replace(one, beside=used, remarks=tuple(remarks))
        used = 0
    if not images:
        for place, _ in beside.values():
            yield DroppedRecord(place=place, reason=ALONE)


def _tar_labels(file: SourceFile, annotations: Annotations) -> set[str | None]:
    """Return the classes of a tar's images, whose pictures are not read for them."""
    labels: set[str | None] = set()
    wanted = tuple(annotations.companions - {".txt"})
    for name, content in tar_members(file, [], wanted):
        inside = SourceFile("", name.removeprefix("./"), 0, "")
        ending = _key_and_ending(name)[1]
        if annotations.label == "folder" and ending in IMAGE_SUFFIXES and not inside.set_aside:
            labels.add(folder_class(inside.name, f"{file.name}: {inside.name}"))
        elif isinstance(content, bytes):
            with suppress(BadRecord):  # told with its image
                labels.add(named_class(content))
    return labels
