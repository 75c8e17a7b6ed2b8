"""Sources of images with captions and classes, cut into blocks and read as streams: image files, tars, and tables.

Image files lie in folders or in a zip. Tables are Parquet, folders that the Hugging Face library `datasets` has saved,
and MosaicML's MDS shards. Of every file, member and row it is known in the end whether it was used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, product
from pathlib import Path, PurePosixPath
from typing import Any

from ditlab.data.images.annotations import (
    CAPTIONS,
    LABELS,
    METADATA,
    REMEDIES,
    Annotations,
    Line,
    caption_bytes,
    class_name,
    class_table,
    read_lines,
)
from ditlab.data.images.decoding import IMAGE_SUFFIXES, CaptionedImage
from ditlab.data.import_blocks import InputBlock, block_bytes, group_files
from ditlab.data.processes import results_in_order
from ditlab.data.source_files import (
    SYSTEM_NAMES,
    TWICE,
    SourceFile,
    endings,
    list_source,
    local_file,
    read_source,
    visible_name,
    with_suffix,
)
from ditlab.data.sources.records import (
    RecordFile,
    files_level,
    not_read,
    read_records,
    record_blocks,
    record_files,
)
from ditlab.data.sources.tables import UNREADABLE, named_classes, other_columns, table_schema
from ditlab.data.sources.tars import tar_members
from ditlab.data.stores.receipt import DAMAGED, DroppedRecord, ReceiptLevel
from ditlab.errors import UserError, first_line, shortened
from ditlab.spec.importing import ImagesOptions

LINES = (".csv", ".jsonl", ".tsv")
"""Endings of files of captions."""
KINDS = {
    "images": "images",
    "tar": ".tar files",
    "parquet": ".parquet files",
    "arrow": ".arrow files",
    "mds": "MDS shards",
}
"""Kinds of blocks, and their names for people."""
IMAGES = "--image-column"
"""Flag that names a table's column of images."""
TABLES = ("parquet", "arrow", "mds")
"""Kinds whose captions lie in a column."""
AT_ONCE = 16
"""Files behind a URI whose beginnings or ends are read at once."""
ROWS = 16
"""Rows of a table that are read at a time: an image each."""
AHEAD = 16
"""Files behind a URI that are read at once: each takes a request's latency."""
ENDINGS_READ = (*IMAGE_SUFFIXES, ".txt", ".json", ".cls")
"""Endings of the members of a tar that are read: images, and what belongs to them."""
BESIDE = "captions and classes"
"""Use of files and members that are an image's caption or class."""
OF_ANOTHER = "about another sample"
"""Reason of a picture beside the one of its key."""
ALONE = "without an image"
"""Reason of captions and classes that belong to no image."""
BEHIND = "beside a damage"
"""Reason of members whose image or caption is lost behind the damage."""


@dataclass(frozen=True)
class ImageSource:
    """Source of images, cut into blocks."""

    annotations: Annotations
    """Rules for captions and classes; of image files, without the captions of each, which its block has."""
    blocks: Sequence[InputBlock]
    classes: Sequence[str]
    """Names of all classes in their order: a class's number is its place here."""
    files: ReceiptLevel
    """Uses of the source's files. Of image files, `images` counts those that are tried."""
    files_left_out: Sequence[DroppedRecord] = ()
    """The first files that are left out."""
    num_lines: int = 0
    """Lines of captions and classes that could be read."""
    warnings: Sequence[str] = ()


def open_image_source(options: ImagesOptions) -> ImageSource:
    """Cut the images of a file, folder, zip, pattern or URI into blocks, a function of the source alone.

    Raises UserError for none, for several kinds of files, for rules they do not have, and for captions of other images.
    """
    listing = list_source(options.source, beside=(".txt", ".json", ".cls"))
    files = [file for file in listing if not file.set_aside]
    images = with_suffix(files, *IMAGE_SUFFIXES)
    tars = with_suffix(files, ".tar")
    metadata = [file for file in files if file.name.rpartition("/")[2].lower() in METADATA] if images else []
    tables = [each for each in record_files(options.source, files) if each.kind in TABLES and each.file not in metadata]
    held = {each.kind for each in tables}
    if images:
        held.add("images")
    if tars:
        held.add("tar")
    kind = _only_kind(held, options.source, listing)
    annotations = _annotations(options, kind, metadata)
    if kind == "images":
        return _image_files(listing, images, annotations, options)
    if kind == "tar":
        return _tar_files(listing, tars, annotations)
    return _table_files(listing, tables, annotations)


def _only_kind(held: Collection[str], source: str, listing: Sequence[SourceFile]) -> str:
    """Return the kind of a source's files. Raises UserError for none and for several."""
    if not held:
        raise UserError(
            f"--source={source} holds no {', '.join(IMAGE_SUFFIXES)}, .tar or .parquet file, no saved datasets folder "
            f"and no MDS index ({endings(listing)}); name one that does."
        )
    if len(held) > 1:
        names = " and ".join(name for kind, name in KINDS.items() if kind in held)
        raise UserError(f"--source={source} holds {names}; name a folder of one kind, or a single file.")
    (kind,) = held
    return kind


def _annotations(options: ImagesOptions, kind: str, metadata: Sequence[SourceFile]) -> Annotations:
    """Read the rules for a kind of source: its captions lie in a column, in files beside the images, or in tables."""
    label: str | None = options.label_from
    if label and kind in TABLES:
        raise UserError(f"--label-from={label}: --source={options.source} holds {KINDS[kind]}; give --label-column.")
    keys = {}
    if options.label_column:
        label = "column"
        keys[LABELS] = options.label_column
    caption = _caption_origin(options, kind, label, metadata)
    if caption != "none":
        keys = {CAPTIONS: options.caption_column, **keys}
    remedy = REMEDIES.get(caption, "").format(lines=options.caption_from, column=options.caption_column)
    if kind == "tar" and caption == "txt":
        remedy = "write one into a .txt member of the same key beside it"
    tables = metadata
    lines: Mapping[str, Line] = {}
    damaged: Sequence[DroppedRecord] = ()
    if caption == "lines":
        tables = [local_file(Path(options.caption_from or ""))]
        lines, damaged = read_lines(tables, keys, f"--caption-from={options.caption_from}")
    elif caption == "metadata":
        lines, damaged = read_lines(tables, keys)
    elif label == "column":
        lines, damaged = read_lines(tables, {LABELS: keys[LABELS]})
    places = [file.place for file in tables] if lines else []
    return Annotations(caption, label, keys, lines, places, remedy, damaged)


def _caption_origin(options: ImagesOptions, kind: str, label: str | None, metadata: Sequence[SourceFile]) -> str:
    """Return `Annotations.caption`. Raises UserError for an origin that this kind of source does not have."""
    chosen = options.caption_from
    if chosen is None:
        if kind in TABLES:
            return "column"
        if metadata:
            return "metadata"
        return "none" if label else "txt"
    caption = "lines" if chosen.endswith(LINES) else chosen
    if caption != "none" and (caption == "column") != (kind in TABLES):
        right = f"txt, json, folder, stem, metadata, FILE{LINES[1]} or none"
        what = "no .parquet files"
        if kind in TABLES:
            right = "column, or none"
            what = KINDS[kind]
        raise UserError(f"--caption-from={chosen}: --source={options.source} holds {what}; give {right}.")
    if caption == "metadata" and not metadata:
        raise UserError(
            f"--caption-from=metadata: --source={options.source} holds no {', '.join(METADATA)}; give txt, or the file."
        )
    return caption


def _tar_files(listing: Sequence[SourceFile], tars: Sequence[SourceFile], annotations: Annotations) -> ImageSource:
    """Cut tars into blocks; their classes are read from all of them."""
    labels: set[str] = set()
    if annotations.label is not None:
        with ThreadPoolExecutor(AT_ONCE if tars[0].is_remote else 1) as pool:
            labels = labels.union(*pool.map(lambda file: _tar_labels(file, annotations), tars))
    blocks = [InputBlock(number, group, "tar") for number, group in enumerate(group_files(tars))]
    level, left_out = files_level(listing, {"read": tars})
    return ImageSource(annotations, blocks, class_table(labels), level, left_out, len(annotations.lines))


def _table_files(listing: Sequence[SourceFile], tables: Sequence[RecordFile], annotations: Annotations) -> ImageSource:
    """Cut tables of one kind into blocks; their classes are the column's names, or its values."""
    files = [each.file for each in tables]
    blocks = record_blocks(tables, block_bytes(sum(file.size for file in files)))
    named: Mapping[str, Sequence[str]] = {}
    if tables[0].kind != "mds":
        with suppress(*UNREADABLE):  # told as its rows are read
            named = named_classes(table_schema(files[0], tables[0].kind))
    classes: Sequence[str] = ()
    warnings = []
    if annotations.label:
        column = annotations.keys[LABELS]
        names = tuple(named.get(column, ()))
        classes = names or _column_classes(blocks, column)
        annotations = replace(annotations, numbered=names)
    elif named:
        name = next(iter(named))
        warnings.append(f"Column '{name}' holds classes, which were not imported; give --label-column {name} for them.")
    level, left_out = files_level(listing, {"read": files})
    return ImageSource(annotations, blocks, classes, level, left_out, warnings=warnings)


def _image_files(
    listing: Sequence[SourceFile], images: Sequence[SourceFile], annotations: Annotations, options: ImagesOptions
) -> ImageSource:
    """Cut the images of a listing into blocks, each with the files and lines that belong to it."""
    # refuses images outside all folders before one is decoded
    labels = {annotations.label_of(PurePosixPath(file.shown), file.shown) for file in images if annotations.label}
    _refuse_other_lines(annotations, images, options)
    files = [file for file in listing if not file.set_aside]
    beside = {(file.stem, file.suffix): file for file in with_suffix(files, *annotations.companions)}
    stems = {file.stem for file in images}
    tables = set(annotations.tables)
    used = {
        "images": images,
        BESIDE: [file for file in beside.values() if file.stem in stems],
        "metadata": [file for file in files if file.place in tables],
    }
    level, left_out = files_level(listing, used, dict.fromkeys([file.name for file in beside.values()], ALONE))
    blocks = _image_blocks(images, beside, annotations)
    warnings: list[str] = []
    if annotations.label == "folder":
        labels |= _outer_folders(options.source, listing)
        warnings = _inner_folder_warnings(images, min(map(str, labels)))
    elif annotations.label in ("column", "cls"):
        labels = _companion_classes(beside.values(), annotations)
    classes = class_table(filter(None, labels))
    num_lines = len(annotations.lines)
    annotations = replace(annotations, lines={})
    return ImageSource(annotations, blocks, classes, level, left_out, num_lines, warnings)


def _image_blocks(
    images: Sequence[SourceFile], beside: Mapping[tuple[str, str], SourceFile], annotations: Annotations
) -> list[InputBlock]:
    """Cut image files into blocks, each with the files of its stems (`beside`, by stem and ending) and its lines."""
    blocks: list[InputBlock] = []
    for group in group_files(images):
        own = {file.shown: annotations.lines[file.shown] for file in group if file.shown in annotations.lines}
        names = product(dict.fromkeys(file.stem for file in group), sorted(annotations.companions))
        files_beside = tuple(beside[name] for name in names if name in beside)
        blocks.append(InputBlock(len(blocks), group, "images", beside=files_beside, detail=own or None))
    return blocks


def _refuse_other_lines(annotations: Annotations, images: Sequence[SourceFile], options: ImagesOptions) -> None:
    """Raise UserError for lines of captions and classes that name images which the source does not hold."""
    names = {file.shown for file in images}
    unknown = [visible_name(name) for name in annotations.lines if name not in names]
    if not unknown:
        return
    if annotations.caption == "lines":
        origin = f"--caption-from={options.caption_from}"
        begin = "below --source"
    else:
        origin = annotations.tables[0]
        begin = "beside that file"
    raise UserError(
        f"{origin} names {shortened(unknown, 1)}, which --source={options.source} does not hold; correct the paths, "
        f"which begin {begin}, or remove the lines."
    )


def _inner_folder_warnings(images: Sequence[SourceFile], outer: str) -> list[str]:
    """Return a sentence where each image lies in a folder of a folder, so that the inner ones may be the classes."""
    if any(file.shown.count("/") < 2 for file in images):
        return []
    inner = {PurePosixPath(file.shown).parts[1] for file in images}
    if not 1 < len(inner) < len(images):
        return []
    return [
        f"Every image lies in a folder of a folder ({outer}/{min(inner)}): classes are the outer ones; give "
        "--label-from inner for the inner ones."
    ]


def _outer_folders(source: str, listing: Sequence[SourceFile]) -> set[str]:
    """Return the folders directly below a source; of this machine those without a file too."""
    found = {visible_name(file.name.split("/")[0]) for file in listing if "/" in file.name and not file.set_aside}
    if not Path(source).is_dir():
        return found
    links = {file.shown for file in listing}  # in a circle
    with os.scandir(source) as entries:
        for entry in entries:
            if entry.is_dir() and not entry.name.startswith(".") and entry.name not in SYSTEM_NAMES:
                found |= {visible_name(entry.name)} - links
    return found


def _companion_classes(files: Iterable[SourceFile], annotations: Annotations) -> set[str | None]:
    """Return the classes that lines, or files beside images, name."""
    if annotations.label == "column" and annotations.lines:
        return {line[1] for line in annotations.lines.values()}
    found: set[str | None] = set()
    for file in files:
        with suppress(*UNREADABLE):  # told where its image is read
            content = {file.suffix: read_source(file)}
            found.add(annotations.annotate(PurePosixPath(file.shown), "", b"", content).label)
    return found


def _column_classes(blocks: Sequence[InputBlock], column: str) -> Sequence[str]:
    """Return the classes of a column: the values that it holds."""
    found: set[str] = set()
    for block in blocks:
        for record in read_records(block, {LABELS: column}, 4096):
            for value in record.values:
                name = _converted(LABELS, value, block, column, record.file)
                found.update(filter(None, [name]))
    return class_table(found)


def read_images(
    block: InputBlock, annotations: Annotations, image_column: str
) -> Iterator[CaptionedImage | DroppedRecord]:
    """Iterate over a block's images, in the order of the source, with one item for all behind the damage of a file.

    Raises UserError for a column that is missing or holds something else, and for an image outside all class folders.
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
    if value is None or isinstance(value, bytes):
        return value
    raise TypeError(type(value).__name__)


COLUMNS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    IMAGES: (image_bytes, "image bytes", "bytes or of {bytes, path}"),
    CAPTIONS: (caption_bytes, "text", "text, or of lists of text"),
    LABELS: (class_name, "class", "whole numbers or text"),
}
"""Conversion of a column's values, what they are, and what its column is one of, by the flag that names the column."""


def _converted(flag: str, value: Any, block: InputBlock, column: str, file: SourceFile) -> Any:
    """Return a value of the column that a flag names as images, captions or classes have it. Raises UserError."""
    convert, what, form = COLUMNS[flag]
    try:
        return convert(value)
    except TypeError:
        raise UserError(
            f"{file.place}: '{column}' holds {type(value).__name__}, no {what}; give {flag} with a column of {form} "
            f"({other_columns(block, column)})."
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
        image = values[IMAGES]
        problem = ""
        if isinstance(image, dict) and "bytes" in image:
            values[IMAGES] = image["bytes"]
            if image["bytes"] is None:
                problem = f"its bytes are null, and its path is {image.get('path')}"
        for flag, column in columns.items():
            values[flag] = _converted(flag, values[flag], block, column, record.file)
        label = values.get(LABELS)
        if annotations.numbered and label is not None:
            number = int(label)
            label = annotations.numbered[number] if 0 <= number < len(annotations.numbered) else None
        yield CaptionedImage(record.place, values[IMAGES], values.get(CAPTIONS), label, problem)


def _read_image_files(block: InputBlock, annotations: Annotations) -> Iterator[CaptionedImage]:
    """Iterate over image files; the .txt file of a stem is that of all images of this stem."""
    beside: dict[str, list[SourceFile]] = {}
    for each in block.beside:
        beside.setdefault(each.stem, []).append(each)
    annotations = replace(annotations, lines=block.detail or {})

    def read(file: SourceFile) -> CaptionedImage:
        path = PurePosixPath(file.shown)
        problem = ""
        contents: dict[str, bytes | str] = {}
        image: bytes | Path | None = None
        for companion in beside.get(file.stem, []):
            try:
                contents[companion.suffix] = read_source(companion)
            except UNREADABLE as error:
                contents[companion.suffix] = first_line(error)
        try:
            # of a file of this machine the path: decoding reads what it needs of it
            image = file.path if file.has_path else read_source(file)
        except UNREADABLE as error:
            problem = first_line(error)
        return annotations.annotate(path, str(path), image, contents, problem)

    if not block.files[0].is_remote:
        yield from map(read, block.files)
        return
    with ThreadPoolExecutor(AHEAD) as pool:
        yield from results_in_order(pool, read, block.files, AHEAD)


def _key(name: str) -> PurePosixPath:
    """Return the key of a tar's member, as WebDataset has it: its path up to the name's first dot."""
    path = PurePosixPath(name)
    return path.parent / (path.name.partition(".")[0] or path.name)


def tar_images(file: SourceFile, annotations: Annotations) -> Iterator[CaptionedImage | DroppedRecord]:
    """Iterate over the images of a tar, and what is none; all behind a damage is one item.

    Neighbours of one key are one sample. A picture whose name has more dots (`a.seg.png`) is about the sample `a`, and
    left out, but where it cannot be: it has a caption of its own, or a number behind the dot (`v1.2_c.png`).
    """
    damage: list[str] = []
    for _, group in groupby(tar_members(file, damage, ENDINGS_READ), lambda member: _key(member[0])):
        members: dict[str, bytes | str | None] = {}
        for name, content in group:
            if name in members:
                yield _dropped(file, name, TWICE)
            else:
                members[name] = content
        is_cut = bool(damage)  # known with the last sample
        while damage:
            yield DroppedRecord(place=file.shown, reason=DAMAGED, detail=damage.pop())
        yield from _sample(file, members, annotations, is_cut)
    while damage:
        yield DroppedRecord(place=file.shown, reason=DAMAGED, detail=damage.pop())


@dataclass
class SampleMembers:
    """Names of the members of one key, by what each is to the sample."""

    images: list[str] = field(default_factory=list)
    """Pictures of the sample."""
    beside: dict[str, dict[str, str]] = field(default_factory=dict)
    """Captions and classes, by stem and ending."""
    others: dict[str, str] = field(default_factory=dict)
    """Reasons of those that are left out."""

    def beside_image(self, name: str) -> dict[str, str]:
        """Return what is of an image's stem, by ending; of a sample's only image, what is of its key."""
        own = self.beside.get(PurePosixPath(name).stem, {})
        if own or len(self.images) > 1:
            return own
        return self.beside.get(_key(name).name, {})


def _sorted_members(names: Iterable[str], companions: Collection[str]) -> SampleMembers:
    """Sort the members of one key. A picture with a dot in its stem is the sample's where it cannot be another's."""
    members = SampleMembers()
    pictures: dict[str, str] = {}  # stems by name
    for name in names:
        path = PurePosixPath(name)
        ending = path.suffix.lower()
        as_file = SourceFile("", name, 0, "")
        if as_file.set_aside:
            members.others[name] = as_file.set_aside
        elif ending in IMAGE_SUFFIXES:
            pictures[name] = path.stem
        elif ending in companions:
            members.beside.setdefault(path.stem, {})[ending] = name
        else:
            members.others[name] = not_read(as_file.ending)
    has_plain = any("." not in stem for stem in pictures.values())
    for name, stem in pictures.items():
        _, dot, behind = stem.partition(".")
        is_version = not has_plain and any(letter.isdigit() for letter in behind)
        if not dot or stem in members.beside or is_version:
            members.images.append(name)
        else:
            members.others[name] = OF_ANOTHER
    return members


def _dropped(file: SourceFile, name: str, reason: str) -> DroppedRecord:
    detail = "a dot in its name: rename it, or write a caption of its stem beside it" if reason == OF_ANOTHER else ""
    return DroppedRecord(place=f"{file.shown}: {PurePosixPath(visible_name(name))}", reason=reason, detail=detail)


def _sample(
    file: SourceFile, contents: Mapping[str, bytes | str | None], annotations: Annotations, is_cut: bool
) -> Iterator[CaptionedImage | DroppedRecord]:
    """Iterate over the images of neighbours of one key, and over those that are none of their own.

    `is_cut`: the tar is damaged behind them.
    """
    members = _sorted_members(contents, annotations.companions)
    for name, reason in members.others.items():
        yield _dropped(file, name, reason)
    used: set[str] = set()
    for name in members.images:
        named = members.beside_image(name)
        newly_used = {*named.values()} - used
        used |= newly_used
        if is_cut and annotations.companions and not named:
            yield _dropped(file, name, BEHIND)
            continue
        content = contents[name]
        inside = PurePosixPath(visible_name(name))
        image = annotations.annotate(
            inside,
            f"{file.shown}: {inside}",
            content,
            {ending: beside for ending, other in named.items() if (beside := contents[other]) is not None},
            content if isinstance(content, str) else "",
        )
        yield replace(image, beside=len(newly_used))
    for name in chain.from_iterable(names.values() for names in members.beside.values()):
        if name not in used:
            yield _dropped(file, name, BEHIND if is_cut and not members.images else ALONE)


def _tar_labels(file: SourceFile, annotations: Annotations) -> set[str]:
    """Return the classes of a tar's images, whose pictures are not read for them."""
    if annotations.label in ("folder", "inner"):
        insides = (PurePosixPath(visible_name(name)) for name, _ in tar_members(file, [], wanted=()))
        found = (
            annotations.label_of(each, f"{file.shown}: {each}")
            for each in insides
            if each.suffix.lower() in IMAGE_SUFFIXES and not SourceFile("", str(each), 0, "").set_aside
        )
        return set(filter(None, found))
    labels: set[str | None] = set()
    for name, content in tar_members(file, [], wanted=tuple(annotations.companions - {".txt"})):
        path = PurePosixPath(name)
        if isinstance(content, bytes):
            labels.add(annotations.annotate(path, "", b"", {path.suffix.lower(): content}).label)
    return set(filter(None, labels))
