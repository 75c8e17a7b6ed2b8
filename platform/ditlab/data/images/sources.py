"""Sources of images with captions, as blocks: image files, WebDataset tars, Parquet, `datasets` folders, MDS."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

from ditlab.data.block_imports.plan import BlockNumbers, InputBlock, block_bytes, group_files
from ditlab.data.block_imports.source_files import BadRecord, SourceFile, SourceListing, list_source
from ditlab.data.images.annotations import REMEDIES, Annotations, CaptionLines, check_known, read_captions
from ditlab.data.images.decoding import IMAGE_SUFFIXES
from ditlab.data.images.tar_files import tar_labels
from ditlab.data.sources.parquet import parquet_rows
from ditlab.data.sources.records import RecordFile, record_blocks, record_files
from ditlab.errors import UserError

LINES = ".jsonl"
"""Ending of files of captions."""
KINDS = {
    "images": "images",
    "tar": ".tar files",
    "parquet": ".parquet files",
    "arrow": ".arrow files",
    "mds": "MDS shards",
}
"""Kinds of blocks, and their names for people."""
TABLES = ("parquet", "arrow", "mds")
"""Kinds whose captions lie in a column."""
AT_ONCE = 16
"""Files behind a URI whose beginnings or ends are read at once."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class ImageSource:
    """Source of images, cut into blocks."""

    annotations: Annotations
    """Rules for captions and classes; of image files, without the captions of each, which its block has."""
    blocks: Sequence[InputBlock]
    num: int | None
    """Number of images; None where it is unknown before they are read."""
    classes: Sequence[str]
    """Names of all classes, sorted: a class's number is its place here."""


@dataclass(frozen=True)
class SourceRules:
    """Places of images, captions and classes in a source."""

    image_column: str
    caption_column: str
    caption_from: str | None = None
    """`txt`, `folder`, `stem`, `column`, `none` or the path of a .jsonl; None: as the source's kind has it."""
    label_from: str | None = None
    """`folder`, or None for no classes."""


def open_image_source(source: str, rules: SourceRules) -> ImageSource:
    """Cut the images of a file, folder, pattern or URI into blocks, a function of the source alone.

    Raises UserError where there are none, for a folder of several kinds of files, for rules that such files do not
    have, and for captions of other images.
    """
    listing = list_source("--source", source, beside=(".txt",))
    files = {"images": listing.of(*IMAGE_SUFFIXES), "tar": listing.of(".tar")}
    tables = [each for each in record_files("--source", listing) if each.kind in TABLES]
    held = [kind for kind, found in files.items() if found]
    held += [kind for kind in TABLES if any(each.kind == kind for each in tables)]
    if not held:
        raise UserError(
            f"--source={source} holds no {', '.join(IMAGE_SUFFIXES)}, .tar or .parquet file, no saved datasets folder "
            "and no MDS index; name one that does."
        )
    if len(held) > 1:
        names = " and ".join(KINDS[kind] for kind in held)
        raise UserError(f"--source={source} holds {names}; name a folder of one kind, or a single file.")
    (kind,) = held
    annotations = _annotations(rules, kind, source)
    if kind == "images":
        return _image_files(listing, files[kind], annotations, rules)
    if kind == "tar":
        return _tars(files[kind], annotations)
    blocks = record_blocks(tables, block_bytes(sum(each.file.size for each in tables))).blocks
    return ImageSource(annotations, blocks, _num_records(tables), ())


def _annotations(rules: SourceRules, kind: str, source: str) -> Annotations:
    """Read the rules for a kind of source, whose captions lie in a column or in .txt files."""
    default = "column" if kind in TABLES else "txt"
    chosen = rules.caption_from or ("none" if rules.label_from else default)
    caption = "lines" if chosen.endswith(LINES) else chosen
    if (caption == "column") != (default == "column") and caption != "none":
        right = "column, or none" if default == "column" else f"txt, folder, stem, FILE{LINES} or none"
        what = KINDS[kind] if default == "column" else "no .parquet files"
        raise UserError(f"--caption-from={chosen}: --source={source} holds {what}; give {right}.")
    if rules.label_from and default == "column":
        raise UserError(f"--label-from={rules.label_from}: --source={source} holds {KINDS[kind]}; leave it out.")
    remedy = REMEDIES.get(caption, "").format(lines=chosen, column=rules.caption_column)
    if kind == "tar" and caption == "txt":
        remedy = "write one into a .txt member of the same key beside it"
    lines = read_captions(Path(chosen), rules.caption_column) if caption == "lines" else CaptionLines({}, ())
    return Annotations(caption, rules.label_from, lines.captions, remedy, lines.damaged)


def _image_files(
    listing: SourceListing, images: Sequence[SourceFile], annotations: Annotations, rules: SourceRules
) -> ImageSource:
    # refuses images outside all folders before one is decoded
    labels = {annotations.label_of(PurePosixPath(file.shown), file.shown) for file in images}
    if annotations.caption == "lines":
        check_known(Path(str(rules.caption_from)), annotations.lines, {file.shown for file in images}, listing.source)
    texts = {file.stem: file for file in listing.of(".txt")} if annotations.caption == "txt" else {}
    numbers = BlockNumbers()
    for group in group_files(images, block_bytes(sum(file.size for file in images))):
        stems = dict.fromkeys(file.stem for file in group)
        captions = {file.shown: annotations.lines[file.shown] for file in group if file.shown in annotations.lines}
        beside = tuple(texts[stem] for stem in stems if stem in texts)
        numbers.add(group, "images", beside=beside, detail=captions or None)
    return ImageSource(replace(annotations, lines={}), numbers.blocks, len(images), _named(labels))


def _tars(tars: Sequence[SourceFile], annotations: Annotations) -> ImageSource:
    numbers = BlockNumbers()
    for group in group_files(tars, block_bytes(sum(file.size for file in tars))):
        numbers.add(group, "tar")
    labels: set[str] = set()
    if annotations.label is not None:
        labels = labels.union(*_of_each(lambda file: tar_labels(file, annotations), tars))
    return ImageSource(annotations, numbers.blocks, None, _named(labels))


def _num_records(tables: Sequence[RecordFile]) -> int | None:
    """Return the number of rows, where the source says so; None where it is not worth a request for each file."""
    if tables[0].kind == "mds":
        return sum(int(each.detail["samples"]) for each in tables)
    if tables[0].kind == "arrow" or tables[0].file.is_remote:
        return None
    try:
        return sum(sum(parquet_rows(each.file)) for each in tables)
    except BadRecord:
        return None


def _of_each(read: Callable[[SourceFile], Value], files: Sequence[SourceFile]) -> Iterator[Value]:
    """Yield `read` of each file, in their order; behind a URI, of some at once."""
    if not any(file.is_remote for file in files[:1]):
        yield from map(read, files)
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(read, files)


def _named(labels: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted(label for label in labels if label))
