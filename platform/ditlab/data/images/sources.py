"""Sources of images with captions, as blocks: image files, WebDataset tars, Parquet, `datasets` folders, MDS."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ditlab.data.block_imports.plan import InputBlock, block_bytes, group_files
from ditlab.data.block_imports.source_files import (
    BadRecord,
    SourceFile,
    SourceListing,
    list_source,
    visible_name,
)
from ditlab.data.images.annotations import REMEDIES, Annotations, read_captions
from ditlab.data.images.decoding import IMAGE_SUFFIXES
from ditlab.data.images.tar_files import tar_labels
from ditlab.data.sources.records import record_blocks, record_files
from ditlab.data.sources.tables import parquet_rows
from ditlab.errors import UserError
from ditlab.spec.importing import ImagesOptions

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


def open_image_source(options: ImagesOptions) -> ImageSource:
    """Cut the images of a file, folder, pattern or URI into blocks, a function of the source alone.

    Raises UserError where there are none, for a folder of several kinds of files, for rules that such files do not
    have, and for captions of other images.
    """
    source = options.source
    listing = list_source("--source", source, beside=(".txt",))
    images, tars = listing.of(*IMAGE_SUFFIXES), listing.of(".tar")
    tables = [each for each in record_files("--source", listing) if each.kind in TABLES]
    found = {"images": images, "tar": tars} | {kind: [each for each in tables if each.kind == kind] for kind in TABLES}
    held = [kind for kind, files in found.items() if files]
    if not held:
        raise UserError(
            f"--source={source} holds no {', '.join(IMAGE_SUFFIXES)}, .tar or .parquet file, no saved datasets folder "
            "and no MDS index; name one that does."
        )
    if len(held) > 1:
        names = " and ".join(KINDS[kind] for kind in held)
        raise UserError(f"--source={source} holds {names}; name a folder of one kind, or a single file.")
    (kind,) = held
    annotations = _annotations(options, kind)
    if kind == "images":
        return _image_files(listing, images, annotations, options)
    if kind == "tar":
        labels: set[str] = set()
        if annotations.label is not None:
            with ThreadPoolExecutor(AT_ONCE if tars[0].is_remote else 1) as pool:
                labels = labels.union(*pool.map(lambda file: tar_labels(file, annotations), tars))
        blocks = [InputBlock(number, group, "tar") for number, group in enumerate(group_files(tars))]
        return ImageSource(annotations, blocks, None, tuple(sorted(filter(None, labels))))
    num = None  # where it would take a request for each file
    if kind == "mds":
        num = sum(int(each.detail["samples"]) for each in tables)
    elif kind == "parquet" and not tables[0].file.is_remote:
        with suppress(BadRecord):
            num = sum(sum(parquet_rows(each.file)) for each in tables)
    blocks = record_blocks(tables, block_bytes(sum(each.file.size for each in tables)))
    return ImageSource(annotations, blocks, num, ())


def _annotations(options: ImagesOptions, kind: str) -> Annotations:
    """Read the rules for a kind of source, whose captions lie in a column or in .txt files."""
    default = "column" if kind in TABLES else "txt"
    chosen = options.caption_from or ("none" if options.label_from else default)
    caption = "lines" if chosen.endswith(LINES) else chosen
    if (caption == "column") != (default == "column") and caption != "none":
        right = "column, or none" if default == "column" else f"txt, folder, stem, FILE{LINES} or none"
        what = KINDS[kind] if default == "column" else "no .parquet files"
        raise UserError(f"--caption-from={chosen}: --source={options.source} holds {what}; give {right}.")
    if options.label_from and default == "column":
        raise UserError(
            f"--label-from={options.label_from}: --source={options.source} holds {KINDS[kind]}; leave it out."
        )
    remedy = REMEDIES.get(caption, "").format(lines=chosen, column=options.caption_column)
    if kind == "tar" and caption == "txt":
        remedy = "write one into a .txt member of the same key beside it"
    captions, damaged = read_captions(Path(chosen), options.caption_column) if caption == "lines" else ({}, [])
    return Annotations(caption, options.label_from, captions, remedy, damaged)


def _image_files(
    listing: SourceListing, images: Sequence[SourceFile], annotations: Annotations, options: ImagesOptions
) -> ImageSource:
    # refuses images outside all folders before one is decoded
    labels = {annotations.label_of(PurePosixPath(file.shown), file.shown) for file in images}
    lines, names = annotations.lines, {file.shown for file in images}
    if unknown := [visible_name(name) for name in lines if name not in names]:
        more = f" and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
        raise UserError(
            f"--caption-from={options.caption_from} names {unknown[0]}{more}, which --source={listing.source} does not "
            "hold; correct the paths, which begin below --source, or remove the lines."
        )
    texts = {file.stem: file for file in listing.of(".txt")} if annotations.caption == "txt" else {}
    blocks: list[InputBlock] = []
    for group in group_files(images):
        stems = dict.fromkeys(file.stem for file in group)
        captions = {file.shown: lines[file.shown] for file in group if file.shown in lines}
        beside = tuple(texts[stem] for stem in stems if stem in texts)
        blocks.append(InputBlock(len(blocks), group, "images", beside=beside, detail=captions or None))
    return ImageSource(replace(annotations, lines={}), blocks, len(images), tuple(sorted(filter(None, labels))))
